"""Unmodified cuda-bindings programs on the software GPU: results, order of work, and codes of invalid calls."""

from __future__ import annotations

import ast
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from cotenant.errors import ConfigError
from cotenant.softgpu import manage, wire
from tests.support.monitored_node import eventually
from tests.support.software_gpus import run, start

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]


def test_built_in_kernels_compute(softgpu: Path) -> None:
    assert "computed" in run(softgpu, "compute.py")
    counters = manage.inspect(softgpu, 0)
    assert counters["counters"]["kernels"] == 6
    assert counters["memory_free_bytes"] == counters["memory_bytes"]


def test_work_of_a_stream_runs_in_order(softgpu: Path) -> None:
    assert "in order" in run(softgpu, "streams.py")


def test_bad_arguments_get_the_drivers_codes(softgpu: Path) -> None:
    assert "refused" in run(softgpu, "errors.py")
    unsupported = {"cuGraphicsUnregisterResource": 1, "cuLaunchKernelEx": 2, "cuStreamSetAttribute": 2}
    assert manage.inspect(softgpu, 0)["unsupported"] == unsupported


def test_host_memory_out_of_reach_is_refused(softgpu: Path) -> None:
    assert "reached" in run(softgpu, "reach.py")


def test_context_handles_are_not_confused_by_equal_addresses(softgpu: Path) -> None:
    assert "told apart" in run(softgpu, "contexts.py")


def test_a_forked_child_is_not_initialised(softgpu: Path) -> None:
    assert "parent goes on" in run(softgpu, "forked.py")


def test_no_call_crashes_with_zero_arguments(softgpu: Path) -> None:
    names = Path(__file__).parents[2] / "native" / "softgpu" / "abi" / "names.def"
    symbols = re.findall(r"^NAME\((\w+),", names.read_text(), re.MULTILINE)
    process = start(softgpu, "zeros.py")
    out, err = process.communicate(" ".join(symbols), timeout=60)
    assert process.returncode == 0, err
    answers = ast.literal_eval(out)
    assert sum(answers.values()) == 2 * len(symbols)
    # One of the calls begins a capture (of the thread's default stream) that no call without arguments can end.
    assert answers.keys() <= {0, 1, 3, 101, 201, 215, 224, 400, 401, 500, 600, 801, 900, 901, 906}
    listed = manage.inspect(softgpu, 0)["unsupported"]
    assert sum(listed.values()) == answers[801]
    assert set(listed) < set(symbols)


def test_cuda_core_runs(softgpu: Path) -> None:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed (extra dev)")
    assert "core goes" in run(softgpu, "core.py")


def test_modules_have_variables_and_empty_logs(softgpu: Path) -> None:
    assert "variables" in run(softgpu, "variables.py")
    counters = manage.inspect(softgpu, 0)
    assert counters["memory_free_bytes"] == counters["memory_bytes"]


def test_deprecated_launch_calls_work(softgpu: Path) -> None:
    assert "old launches" in run(softgpu, "oldlaunch.py")
    assert manage.inspect(softgpu, 0)["counters"]["kernels"] == 3


def test_memory_can_be_freed_without_a_context(softgpu: Path) -> None:
    assert "freed" in run(softgpu, "leftovers.py")


def test_per_thread_default_streams_are_separate(softgpu: Path) -> None:
    assert "twins" in run(softgpu, "twins.py")


def test_process_uses_two_devices(tmp_path: Path) -> None:
    directory = tmp_path / "gpu"
    gpus = manage.create(directory, "t4", 2)
    try:
        assert [gpu.preset for gpu in gpus] == ["t4", "t4"]
        assert "two" in run(directory, "two.py")
    finally:
        manage.destroy(directory)
    assert manage.gpus(directory) == []


def test_cuda_visible_devices_selects_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "gpu"
    no_device = "CUDA_ERROR_NO_DEVICE"
    expected = {
        "1,0": "2",
        "1": "1",
        "0,7,1": "1",
        "7,0": no_device,
        "": no_device,
        "0,0": no_device,
        "1,0,1": no_device,
    }
    manage.create(directory, "t4", 2)
    try:
        for value, answer in expected.items():
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
            assert run(directory, "visible.py") == answer + "\n", value
    finally:
        manage.destroy(directory)


def test_unknown_device_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="known devices are t4"):
        manage.create(tmp_path / "gpu", "v1000", 1)
    assert not (tmp_path / "gpu").exists()


def test_two_processes_share_one_device(softgpu: Path) -> None:
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(run(softgpu, "compute.py"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["computed\n"] * 2
    assert manage.inspect(softgpu, 0)["counters"]["kernels"] == 12


def test_process_that_exhausts_its_limits_does_not_block_another(softgpu: Path) -> None:
    greedy = start(softgpu, "greedy.py")
    try:
        assert greedy.stdout is not None
        assert greedy.stdout.readline() == "at work\n", greedy.communicate()
        assert run(softgpu, "compute.py") == "computed\n"
        assert run(softgpu, "streams.py")
    finally:
        greedy.kill()
        greedy.communicate()


def test_delay_by_time_slices_is_attributed_to_the_other_client(softgpu: Path) -> None:
    tenants = [start(softgpu, "tenant.py") for _ in range(2)]
    try:
        for tenant in tenants:
            assert tenant.stdout is not None
            assert tenant.stdout.readline() == "at work\n"
        pids = {tenant.pid for tenant in tenants}

        def delayed() -> list[dict[str, Any]]:
            clients: list[dict[str, Any]] = manage.inspect(softgpu, 0)["clients"]
            return clients if all(client["delayed_by"] for client in clients) else []

        clients = eventually(delayed)
        assert {client["pid"] for client in clients} == pids
        for client in clients:
            assert {other["pid"] for other in client["delayed_by"]} == pids - {client["pid"]}
    finally:
        for tenant in tenants:
            tenant.kill()
            tenant.communicate()


def test_program_without_a_device_server_finds_no_device(softgpu: Path) -> None:
    wire.shut_down(softgpu / "gpu0.sock")
    process = start(softgpu, "tenant.py")
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "NO_DEVICE" in err
