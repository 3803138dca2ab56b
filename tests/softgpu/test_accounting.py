"""Device memory by account: all processes of an account, every kind of memory, and processes that die."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml as nv
import pytest

from cotenant.softgpu import manage
from tests.support.cuda_programs import ScriptedProgram, scripted_programs
from tests.support.nvml_library import device_of
from tests.support.software_gpus import start

pytestmark = pytest.mark.live

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")

MIB = 1 << 20
CONTEXT = 300 * MIB
CODE = 4096  # the image of the test programs is smaller than one unit


@pytest.fixture
def costly(tmp_path: Path) -> Iterator[Path]:
    """A soft V100 on which contexts and code take memory, as on hardware."""
    directory = tmp_path / "gpu"
    manage.create(directory, "v100", 1, context_bytes=CONTEXT, counts_code=True)
    yield directory
    manage.destroy(directory)


def account(directory: Path, name: str) -> dict[str, Any]:
    match: dict[str, Any] = {entry["account"]: entry for entry in manage.inspect(directory, 0)["accounts"]}[name]
    return match


def sizes(directory: Path, name: str) -> tuple[int, int]:
    entry = account(directory, name)
    return entry["memory_bytes"], entry["memory_peak_bytes"]


def test_account_sums_over_all_its_processes(softgpu: Path) -> None:
    with (
        scripted_programs(softgpu, 2, SOFTGPU_ACCOUNT="tenant-1") as [first, second],
        scripted_programs(softgpu, 1) as [stranger],
    ):
        first.do("alloc", 3 * MIB)
        name = second.do("alloc", 2 * MIB)
        stranger.do("alloc", 7 * MIB)
        assert sizes(softgpu, "tenant-1") == (5 * MIB, 5 * MIB)
        second.do("free", name)
        assert sizes(softgpu, "tenant-1") == (3 * MIB, 5 * MIB)
        first.kill()
        assert sizes(softgpu, "tenant-1") == (0, 5 * MIB)
        second.do("alloc", 4 * MIB)
        assert sizes(softgpu, "tenant-1") == (4 * MIB, 5 * MIB)
        (entry,) = manage.inspect(softgpu, 0)["accounts"]
        assert (entry["clients"], entry["connected"]) == (1, 2)
        accounts = {client["pid"]: client["account"] for client in manage.inspect(softgpu, 0)["clients"]}
        assert accounts == {second.process.pid: "tenant-1", stranger.process.pid: ""}
    assert account(softgpu, "tenant-1")["clients"] == 0
    assert sizes(softgpu, "tenant-1") == (0, 5 * MIB)


def test_shared_memory_stays_charged_to_the_account_of_its_creator(softgpu: Path) -> None:
    maker, taker = ScriptedProgram(softgpu, SOFTGPU_ACCOUNT="maker"), ScriptedProgram(softgpu, SOFTGPU_ACCOUNT="taker")
    try:
        handle = maker.do("ipc_get", maker.do("alloc", 2 * MIB))
        opened = taker.do("ipc_open", handle)
        assert sizes(softgpu, "maker") == (2 * MIB, 2 * MIB)
        maker.kill()
        # The device charges the client that holds it; the account of its creator stays charged, too.
        (client,) = manage.inspect(softgpu, 0)["clients"]
        assert client["counters"]["memory_bytes"] == 2 * MIB
        assert (sizes(softgpu, "maker"), sizes(softgpu, "taker")) == ((2 * MIB, 2 * MIB), (0, 0))
        taker.do("ipc_close", opened)
        assert (sizes(softgpu, "maker"), sizes(softgpu, "taker")) == ((0, 2 * MIB), (0, 0))
    finally:
        maker.kill()
        taker.kill()


def test_contexts_and_code_use_memory_if_configured(costly: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_programs(costly, 1, SOFTGPU_ACCOUNT="t") as [program], device_of(costly, monkeypatch) as device:
        total = manage.inspect(costly, 0)["memory_bytes"]

        def used() -> int:
            used_bytes = total - program.do("free_bytes")
            (process,) = nv.nvmlDeviceGetComputeRunningProcesses(device)
            (charged, _) = sizes(costly, "t")
            assert process.usedGpuMemory == charged == used_bytes
            return charged

        base = CONTEXT + CODE
        assert used() == base
        module = program.do("load")
        assert used() == base + CODE
        program.do("unload", module)
        assert used() == base
        library = program.do("load_library")
        assert used() == base  # it was not used in a context yet
        program.do("launch_of", library)
        program.do("launch_of", library)
        assert used() == base + CODE
        context = program.do("new_context")
        assert used() == base + CODE + CONTEXT
        program.do("launch_of", library)
        assert used() == base + 2 * CODE + CONTEXT
        program.do("end_context", context)
        assert used() == base + CODE
        program.do("unload_library", library)
        assert used() == base
    assert sizes(costly, "t") == (0, base + 2 * CODE + CONTEXT)


def test_code_that_does_not_fit_is_refused_and_uses_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "gpu"
    manage.create(directory, "v100", 1, memory_bytes=4 * MIB, counts_code=True)
    try:
        with scripted_programs(directory, 1, SOFTGPU_ACCOUNT="t") as [program]:
            library = program.do("load_library")
            rest = program.do("alloc", program.do("free_bytes"))
            full = sizes(directory, "t")
            assert full == (4 * MIB, 4 * MIB)
            assert program.code("load") == program.code("launch_of", library) == "CUDA_ERROR_OUT_OF_MEMORY"
            assert sizes(directory, "t") == full
            program.do("free", rest)
            program.do("launch_of", library)
            assert sizes(directory, "t") == (2 * CODE, 4 * MIB)
    finally:
        manage.destroy(directory)


def test_every_kind_of_memory_is_in_the_account(softgpu: Path) -> None:
    with scripted_programs(softgpu, 1, SOFTGPU_ACCOUNT="t") as [program]:
        pool = program.do("pool_make")
        kinds = [
            ("alloc", (MIB,), MIB),
            ("create", (2 * MIB,), 2 * MIB),
            ("pool_alloc", (pool, MIB), 2 * MIB),  # pools count by what they reserved
            ("array", (65536,), 65536),
        ]
        expected = 0
        for name, arguments, more in kinds:
            program.do(name, *arguments)
            expected += more
            assert sizes(softgpu, "t") == (expected, expected), name
        managed = program.do("managed", 5 * MIB)
        assert sizes(softgpu, "t") == (expected, expected)
        (client,) = manage.inspect(softgpu, 0)["clients"]
        assert client["managed_bytes"] == 5 * MIB
        program.do("free", managed)
        (client,) = manage.inspect(softgpu, 0)["clients"]
        assert client["managed_bytes"] == 0


@pytest.mark.parametrize("name", ["x" * 64, 'quo"te', "two words"])
def test_invalid_account_name_is_refused(softgpu: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTGPU_ACCOUNT", name)
    process = start(softgpu, "worker.py")
    _, errors = process.communicate(timeout=60)
    assert "CUDA_ERROR_INVALID_VALUE" in errors
    assert manage.inspect(softgpu, 0)["accounts"] == []
