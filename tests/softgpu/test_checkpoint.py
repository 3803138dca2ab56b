"""A process suspended from outside: its calls wait, and its memory leaves the device and returns."""

from __future__ import annotations

import select
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml as nv
import pytest

from cotenant.softgpu import fault, manage
from tests.support.cuda_programs import ScriptedProgram, scripted_programs
from tests.support.mps_daemons import MpsHarness
from tests.support.nvml_library import device_of
from tests.support.software_gpus import start

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

MIB = 1 << 20
RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)
ILLEGAL, INVALID, UNSUPPORTED = (f"CUDA_ERROR_{name}" for name in ("ILLEGAL_STATE", "INVALID_VALUE", "NOT_SUPPORTED"))
NO_MEMORY, NOT_READY = "CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_NOT_READY"
OK = "CUDA_SUCCESS"
A_SECOND_NS = 1_000_000_000


@pytest.fixture
def pair(softgpu: Path) -> Iterator[tuple[ScriptedProgram, ScriptedProgram]]:
    """The program that is suspended, and the one that suspends it."""
    with scripted_programs(softgpu, 1, SOFTGPU_ACCOUNT="t") as [target], scripted_programs(softgpu, 1) as [other]:
        target.do("sync")
        other.do("sync")
        yield target, other


def counters_of(directory: Path, program: ScriptedProgram) -> dict[str, Any]:
    return counters_of_pid(directory, program.process.pid)


def counters_of_pid(directory: Path, pid: int) -> dict[str, Any]:
    clients: list[dict[str, Any]] = manage.inspect(directory, 0)["clients"]
    return next(client for client in clients if client["pid"] == pid)


def used(directory: Path) -> int:
    counters = manage.inspect(directory, 0)
    return int(counters["memory_bytes"]) - int(counters["memory_free_bytes"])


def is_silent(program: ScriptedProgram) -> bool:
    return select.select([program.line], [], [], 0) == ([], [], [])


def suspend(other: ScriptedProgram, pid: int) -> None:
    other.do("lock", pid)
    other.do("checkpoint", pid)


def resume(other: ScriptedProgram, pid: int) -> None:
    other.do("restore", pid)
    other.do("unlock", pid)


def test_memory_leaves_the_device_and_returns_with_its_content(
    softgpu: Path, pair: tuple[ScriptedProgram, ScriptedProgram], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, other = pair
    pid = target.process.pid
    plain, pool = target.do("alloc", 3 * MIB), target.do("pool_make", exportable=False)
    target.do("pool_alloc", pool, MIB)
    target.do("fill", plain, 7, 3 * MIB)
    assert used(softgpu) == 5 * MIB
    with device_of(softgpu, monkeypatch) as device:
        before = {process.pid for process in nv.nvmlDeviceGetComputeRunningProcesses(device)}
        other.do("lock", pid)
        target.tell("read", plain + 2 * MIB, 2)
        assert (other.do("state", pid), used(softgpu)) == (LOCKED, 5 * MIB)
        other.do("checkpoint", pid)
        assert (other.do("state", pid), used(softgpu)) == (CHECKPOINTED, 0)
        (account,) = manage.inspect(softgpu, 0)["accounts"]
        assert (account["memory_bytes"], account["memory_peak_bytes"], account["clients"]) == (0, 5 * MIB, 1)
        reported = counters_of(softgpu, target)
        assert (reported["state"], reported["parked_bytes"], reported["counters"]["memory_bytes"]) == (
            "checkpointed",
            5 * MIB,
            0,
        )
        assert before - {process.pid for process in nv.nvmlDeviceGetComputeRunningProcesses(device)} == {pid}
        assert other.do("restore_thread", pid) == pid
        other.do("restore", pid)
        assert (other.do("state", pid), used(softgpu)) == (LOCKED, 5 * MIB)
        assert is_silent(target)
        other.do("unlock", pid)
        assert {process.pid for process in nv.nvmlDeviceGetComputeRunningProcesses(device)} == before
    assert target.receive()[:2] == (OK, ["0707"])
    assert other.do("state", pid) == RUNNING
    target.do("free", plain)
    assert used(softgpu) == 2 * MIB


def test_lock_waits_for_launched_work(softgpu: Path, pair: tuple[ScriptedProgram, ScriptedProgram]) -> None:
    target, other = pair
    pid = target.process.pid
    fault.inject(softgpu, 0, fault.KINDS["hang"], client=pid)
    target.do("spin", 1000)
    assert counters_of(softgpu, target)["counters"]["kernels"] == 0
    assert other.code("lock", pid, 1) == NOT_READY
    assert other.do("state", pid) == RUNNING
    target.do("spin", 1000)  # the lock attempt was undone
    other.tell("lock", pid)
    while counters_of(softgpu, target)["state"] != "locking":
        pass
    fault.inject(softgpu, 0, fault.KINDS["clear"])
    assert other.receive()[0] == OK
    assert counters_of(softgpu, target)["counters"]["kernels"] == 2
    other.do("unlock", pid)


def test_calls_in_the_wrong_order_change_nothing(softgpu: Path, pair: tuple[ScriptedProgram, ScriptedProgram]) -> None:
    target, other = pair
    pid = target.process.pid
    target.do("alloc", MIB)
    forward = {RUNNING: "lock", LOCKED: "checkpoint", CHECKPOINTED: "restore"}
    allowed = {RUNNING: {"lock"}, LOCKED: {"checkpoint", "unlock"}, CHECKPOINTED: {"restore"}}
    for state, step in forward.items():
        assert other.do("state", pid) == state
        for call in ("lock", "checkpoint", "restore", "unlock"):
            if call not in allowed[state]:
                assert other.code(call, pid) == ILLEGAL, (state, call)
        assert other.do("state", pid) == state
        other.do(step, pid)
    other.do("unlock", pid)
    assert used(softgpu) == MIB
    for call in ("state", "lock", "checkpoint", "restore", "unlock", "restore_thread"):
        assert other.code(call, 1) == other.code(call, -1) == INVALID


def test_restore_without_free_memory_leaves_the_process_checkpointed(
    softgpu: Path, pair: tuple[ScriptedProgram, ScriptedProgram]
) -> None:
    target, other = pair
    pid = target.process.pid
    target.do("alloc", 64 * MIB)
    suspend(other, pid)
    rest = other.do("alloc", other.do("free_bytes") - 64 * MIB + 512)
    assert other.code("restore", pid) == NO_MEMORY
    assert (other.do("state", pid), counters_of(softgpu, target)["parked_bytes"]) == (CHECKPOINTED, 64 * MIB)
    other.do("free", rest)
    resume(other, pid)
    target.do("sync")
    assert used(softgpu) == 64 * MIB


def test_managed_and_shared_memory_cannot_be_checkpointed(pair: tuple[ScriptedProgram, ScriptedProgram]) -> None:
    target, other = pair
    pid = target.process.pid
    managed = target.do("managed", MIB)
    other.do("lock", pid)
    assert other.code("checkpoint", pid) == UNSUPPORTED
    other.do("unlock", pid)
    target.do("free", managed)
    opened = other.do("ipc_open", target.do("ipc_get", target.do("alloc", MIB)))
    other.do("lock", pid)
    assert (other.code("checkpoint", pid), other.do("state", pid)) == (UNSUPPORTED, LOCKED)
    other.do("unlock", pid)
    other.do("ipc_close", opened)
    target.do("sync")


def test_restore_to_another_device_is_refused(softgpu: Path, pair: tuple[ScriptedProgram, ScriptedProgram]) -> None:
    target, other = pair
    pid, own, another = target.process.pid, manage.inspect(softgpu, 0)["uuid"], "00" * 16
    suspend(other, pid)
    assert other.code("restore", pid, (another, another)) == INVALID  # every GPU must be named
    assert other.code("restore", pid, (own, another)) == UNSUPPORTED
    assert other.do("state", pid) == CHECKPOINTED
    other.do("restore", pid, (own, own))
    other.do("unlock", pid)
    target.do("sync")


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_suspended_process_can_be_ended(
    softgpu: Path, pair: tuple[ScriptedProgram, ScriptedProgram], *, is_checkpointed: bool
) -> None:
    target, other = pair
    pid = target.process.pid
    target.do("alloc", MIB)
    other.do("lock", pid)
    if is_checkpointed:
        other.do("checkpoint", pid)
    target.tell("alloc", MIB)
    target.process.send_signal(signal.SIGTERM)
    assert target.process.wait(60) == -signal.SIGTERM
    # The query uses a new connection, which the server handles after the death.
    (account,) = manage.inspect(softgpu, 0)["accounts"]
    assert (used(softgpu), account["memory_bytes"], account["clients"]) == (0, 0, 0)
    assert other.code("state", pid) == INVALID


def test_suspended_process_survives_the_death_of_the_suspending_one(
    softgpu: Path, pair: tuple[ScriptedProgram, ScriptedProgram]
) -> None:
    target, other = pair
    pid = target.process.pid
    target.do("alloc", MIB)
    with scripted_programs(softgpu, 2) as [first, second]:
        suspend(first, pid)
        first.kill()
        assert other.do("state", pid) == CHECKPOINTED
        resume(other, pid)
        target.do("spin", 600 * A_SECOND_NS)
        second.do("sync")
        second.tell("lock", pid)
        while counters_of(softgpu, target)["state"] != "locking":
            pass
        assert (other.do("state", pid), other.code("lock", pid)) == (RUNNING, ILLEGAL)
        second.kill()
        target.tell("free_bytes")  # its calls go on, because no process is left that would unlock it
        assert target.receive()[0] == OK
        assert other.do("state", pid) == RUNNING


def test_fault_wakes_the_suspended_process_that_it_affects(
    softgpu: Path, pair: tuple[ScriptedProgram, ScriptedProgram]
) -> None:
    target, other = pair
    pid = target.process.pid
    target.do("alloc", MIB)
    suspend(other, pid)
    target.tell("sync")
    assert fault.inject(softgpu, 0, fault.KINDS["illegal-address"], client=pid) == 1
    assert target.receive()[0] == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert other.do("state", pid) == FAILED
    assert other.code("restore", pid) == other.code("unlock", pid) == other.code("lock", pid) == ILLEGAL


def test_checkpoint_covers_all_devices_of_a_process(tmp_path: Path) -> None:
    directory = tmp_path / "gpu"
    manage.create(directory, "v100", 2)
    try:
        with (
            scripted_programs(directory, 1) as [target],
            scripted_programs(directory, 1, CUDA_VISIBLE_DEVICES="1") as [other],
        ):
            pid = target.process.pid
            target.do("alloc", MIB)
            other.do("sync")
            suspend(other, pid)
            for number in range(2):
                states = {client["pid"]: client["state"] for client in manage.inspect(directory, number)["clients"]}
                assert states[pid] == "checkpointed"
            assert used(directory) == 0
            resume(other, pid)
            target.do("sync")
            assert used(directory) == MIB
    finally:
        manage.destroy(directory)


def test_mps_client_is_suspended_without_its_co_clients(tmp_path: Path) -> None:
    harness = MpsHarness(tmp_path)
    try:
        assert harness.control("-d").returncode == 0
        mps = {"CUDA_MPS_PIPE_DIRECTORY": str(harness.pipe), "CUDA_MPS_LOG_DIRECTORY": str(harness.log)}
        with scripted_programs(harness.directory, 2, **mps) as [target, neighbour]:
            target.do("alloc", MIB)
            neighbour.do("alloc", 2 * MIB)
            assert {client["group"] for client in harness.counters()["clients"]} == {1}
            suspend(neighbour, target.process.pid)
            assert used(harness.directory) == 2 * MIB
            neighbour.do("spin", 1000)
            neighbour.do("sync")
            resume(neighbour, target.process.pid)
            target.do("spin", 1000)
            target.do("sync")
            assert used(harness.directory) == 3 * MIB
    finally:
        harness.close()


def test_busy_threads_stop_at_a_checkpoint_and_go_on_after_it(softgpu: Path) -> None:
    with scripted_programs(softgpu, 1) as [other]:
        busy = start(softgpu, "busy_threads.py")
        assert busy.stdin is not None
        assert busy.stdout is not None

        def send(word: str) -> list[int]:
            print(word, file=busy.stdin, flush=True)
            return [int(number) for number in busy.stdout.readline().split()] if busy.stdout else []

        assert busy.stdout.readline() == "begun\n"
        for _ in range(20):
            suspend(other, busy.pid)
            assert used(softgpu) == 0
            before = send("how far?")
            assert counters_of_pid(softgpu, busy.pid)["state"] == "checkpointed"
            # Each thread goes on to its next call of the driver, and no further.
            assert all(count - earlier in (0, 1) for count, earlier in zip(send("how far?"), before, strict=True))
            resume(other, busy.pid)
            while min(count - earlier for count, earlier in zip(send("how far?"), before, strict=True)) < 2:
                pass
        send("stop")
        out, err = busy.communicate(timeout=60)
        assert (busy.returncode, out, err) == (0, "", "")


def test_locked_process_gets_an_error_when_its_device_is_destroyed(
    softgpu: Path, pair: tuple[ScriptedProgram, ScriptedProgram]
) -> None:
    target, other = pair
    other.do("lock", target.process.pid)
    target.tell("sync")
    manage.destroy(softgpu)
    assert target.receive()[0] == "CUDA_ERROR_DEVICE_UNAVAILABLE"


def test_process_killed_during_a_checkpoint_leaves_no_memory(softgpu: Path) -> None:
    with scripted_programs(softgpu, 1) as [third]:
        third.do("sync")
        for moment in range(4):
            with (
                scripted_programs(softgpu, 1, SOFTGPU_ACCOUNT=f"m{moment}") as [target],
                scripted_programs(softgpu, 1) as [other],
            ):
                pid = target.process.pid
                target.do("alloc", MIB)
                other.do("sync")
                target.tell("churn", 4 * MIB)
                other.tell("cycle", pid)
                for _ in range(moment * 5 + 1):
                    assert other.line.recv(64)  # one more cycle is complete, and the next one has begun
                (other if moment % 2 else target).kill()
                if moment % 2:
                    while manage.inspect(softgpu, 0)["left"] < 2 * moment + 1:
                        pass  # until the server has handled the death and released the locks of the dead process
                    revive(third, pid)
                    assert counters_of(softgpu, target)["state"] == "running"
            counters = manage.inspect(softgpu, 0)
            assert counters["memory_bytes"] == counters["memory_free_bytes"]
            assert [account["memory_bytes"] for account in counters["accounts"]] == [0] * (moment + 1)


def revive(other: ScriptedProgram, pid: int) -> None:
    """Bring a process back to the running state, wherever the previous suspension stopped."""
    steps = {CHECKPOINTED: "restore", LOCKED: "unlock"}
    while (state := other.do("state", pid)) != RUNNING:
        other.do(steps[state], pid)
