"""Every kind of fault as unmodified programs see it; other programs and the device are unaffected."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.errors import ConfigError, WorldError
from cotenant.softgpu import manage
from cotenant.softgpu.fault import KINDS, Reach, inject, reset, set_clock
from tests.softgpu.test_crash import await_work, counters_after_deaths
from tests.support.software_gpus import run, start

pytestmark = pytest.mark.live

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")

OF_ONE_CLIENT = [kind.name for kind in KINDS.values() if kind.reach is Reach.CLIENT and kind.xids and not kind.lasting]


@pytest.fixture
def a100(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "gpu"
    manage.create(directory, "a100", 1)
    yield directory
    manage.destroy(directory)


def read_words(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    words = process.stdout.readline().split()
    assert words, process.communicate()
    return words


def xids(directory: Path) -> list[tuple[int, int]]:
    return [(entry["xid"], entry["pid"]) for entry in manage.inspect(directory, 0)["xids"]]


@pytest.mark.parametrize("name", OF_ONE_CLIENT)
def test_fatal_fault_is_sticky_for_its_process_only(a100: Path, name: str) -> None:
    kind = KINDS[name]
    victim, bystander = start(a100, "fault_waiter.py", "1000"), start(a100, "paced.py", "400")
    await_work(victim)
    await_work(bystander)
    assert inject(a100, 0, kind, client=victim.pid) == 1
    assert set(read_words(victim)) == {kind.code}
    # Its memory stays allocated until it exits; its queued work is lost.
    counters = {client["pid"]: client for client in manage.inspect(a100, 0)["clients"]}
    assert counters[victim.pid]["counters"]["memory_bytes"] == 1 << 20
    assert counters[victim.pid]["counters"]["kernels"] == 0
    assert xids(a100) == [(xid, victim.pid) for xid in kind.xids]
    assert inject(a100, 0, kind, client=victim.pid) == 0  # once is enough
    out, err = victim.communicate("", timeout=60)
    # Of all faults only an assert is over with its context; otherwise the process must be started anew.
    assert out.strip() == ("CUDA_SUCCESS" if name == "assert" else kind.code), err
    assert float(read_words(bystander)[0]) >= 400  # not one kernel of it is lost
    assert bystander.communicate("", timeout=60) == ("", "")
    assert counters_after_deaths(a100)["memory_free_bytes"] == manage.inspect(a100, 0)["memory_bytes"]
    assert "computed" in run(a100, "compute.py")


def test_fault_caused_by_a_program_is_logged_as_an_xid(softgpu: Path) -> None:
    run(softgpu, "errors.py")
    (entry,) = manage.inspect(softgpu, 0)["xids"]
    assert (entry["sequence"], entry["xid"]) == (1, 31)
    log = (softgpu / "gpu0.log").read_text()
    assert f"NVRM: Xid (PCI:0000:17:00): 31, pid={entry['pid']}, name=python" in log


@pytest.mark.parametrize("model, expected_xids", [("v100", [48, 63]), ("a100", [48, 63, 95])])
def test_ecc_error_affects_every_client(tmp_path: Path, model: str, expected_xids: list[int]) -> None:
    directory = tmp_path / "gpu"
    manage.create(directory, model, 1)
    try:
        victims = [start(directory, "fault_waiter.py", "1000") for _ in range(2)]
        for victim in victims:
            await_work(victim)
        assert inject(directory, 0, KINDS["ecc"]) == 2
        for victim in victims:
            assert set(read_words(victim)) == {"CUDA_ERROR_ECC_UNCORRECTABLE"}
            victim.communicate("")
        assert xids(directory) == [(xid, 0) for xid in expected_xids]
        assert "computed" in run(directory, "compute.py")
        if model == "v100":
            with pytest.raises(ConfigError, match="A100"):
                inject(directory, 0, KINDS["ecc-contained"])
    finally:
        manage.destroy(directory)


def test_lost_device_is_unusable_until_reset(softgpu: Path) -> None:
    victim = start(softgpu, "fault_waiter.py", "1000")
    await_work(victim)
    assert inject(softgpu, 0, KINDS["device-lost"]) == 1
    assert set(read_words(victim)) == {"CUDA_ERROR_UNKNOWN"}
    newcomer = start(softgpu, "compute.py")
    assert "CUDA_ERROR_NO_DEVICE" in newcomer.communicate(timeout=60)[1]
    assert manage.inspect(softgpu, 0)["lost"]
    assert xids(softgpu) == [(79, 0)]
    with pytest.raises(WorldError, match="in use by 1"):
        reset(softgpu, 0)
    victim.communicate("")
    counters_after_deaths(softgpu)
    reset(softgpu, 0)
    assert not manage.inspect(softgpu, 0)["lost"]
    assert "computed" in run(softgpu, "compute.py")


def test_hang_ends_when_cleared_and_blocks_no_other_process(softgpu: Path) -> None:
    program = start(softgpu, "paced.py", "1")
    await_work(program)
    assert float(read_words(program)[0]) == pytest.approx(1, rel=1e-3)
    assert inject(softgpu, 0, KINDS["hang"], client=program.pid, at_launch=1) == 1
    assert program.stdin is not None
    program.stdin.write("again\n")
    program.stdin.flush()
    await_work(program)
    before = manage.inspect(softgpu, 0)["clients"][0]["counters"]["kernels"]
    assert "computed" in run(softgpu, "compute.py")
    assert manage.inspect(softgpu, 0)["clients"][0]["counters"]["kernels"] == before
    assert inject(softgpu, 0, KINDS["clear"], client=program.pid) == 1
    assert float(read_words(program)[0]) > 1
    assert program.communicate("", timeout=60)[1] == ""
    assert xids(softgpu) == []


def test_hang_with_a_duration_times_out(softgpu: Path) -> None:
    program = start(softgpu, "tenant.py")
    await_work(program)
    assert inject(softgpu, 0, KINDS["hang"], client=program.pid, at_launch=50, hang_ns=10_000_000) == 1
    assert program.communicate(timeout=60)[0].strip() == "CUDA_ERROR_LAUNCH_TIMEOUT"
    assert xids(softgpu) == [(8, program.pid)]
    assert "computed" in run(softgpu, "compute.py")


def test_fault_occurs_at_the_requested_launch(softgpu: Path) -> None:
    program = start(softgpu, "tenant.py")
    await_work(program)
    assert inject(softgpu, 0, KINDS["launch-failed"], client=program.pid, at_launch=1000) == 1
    assert program.communicate(timeout=60)[0].strip() == "CUDA_ERROR_LAUNCH_FAILED"
    assert xids(softgpu) == [(13, program.pid)]


def test_slow_clock_stretches_kernels_until_it_is_restored(softgpu: Path) -> None:
    set_clock(softgpu, 0, 0.5)
    program = start(softgpu, "paced.py", "20")
    await_work(program)
    assert float(read_words(program)[0]) == pytest.approx(40, rel=1e-3)
    set_clock(softgpu, 0, 1)
    assert manage.inspect(softgpu, 0)["speed"] == 1
    assert program.stdin is not None
    program.stdin.write("again\n")
    program.stdin.flush()
    await_work(program)
    assert float(read_words(program)[0]) == pytest.approx(20, rel=1e-3)
    program.communicate("")
    # A waiting program is notified that its kernel ends earlier, or the device would be ahead of the program.
    set_clock(softgpu, 0, 0.1)
    program = start(softgpu, "paced.py", "2000")
    await_work(program)
    set_clock(softgpu, 0, 1)
    assert 2000 <= float(read_words(program)[0]) < 20000
    program.communicate("")


def test_slow_clock_with_a_duration_is_restored(softgpu: Path) -> None:
    set_clock(softgpu, 0, 0.1, for_ns=50_000_000)
    program = start(softgpu, "paced.py", "2000")
    await_work(program)
    assert 2000 <= float(read_words(program)[0]) < 20000
    program.communicate("")
    assert manage.inspect(softgpu, 0)["speed"] == 1


def test_invalid_fault_arguments_are_refused(softgpu: Path) -> None:
    with pytest.raises(ConfigError, match="it has none"):
        inject(softgpu, 0, KINDS["illegal-address"], client=12345)
    with pytest.raises(ConfigError, match="no process"):
        inject(softgpu, 0, KINDS["illegal-address"], client=2**31)
    with pytest.raises(ConfigError, match="hour"):
        inject(softgpu, 0, KINDS["hang"], hang_ns=2 * 3600 * 10**9)
    for factor in (0, 0.05, 1.5, float("nan")):
        with pytest.raises(ConfigError, match="full speed"):
            set_clock(softgpu, 0, factor)
    assert inject(softgpu, 0, KINDS["mps-server-death"]) == 0
