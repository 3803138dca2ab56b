"""What the node sees of a device: samples, Xids and whose they are, its loss and its return, and work that hangs."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.domain.event import GpuBack, GpuFaulted, GpuLost, GpuSeen, TenantDrained, TenantHangs
from cotenant.domain.gpu import Gpu
from cotenant.domain.instant import MILLISECOND_NS, SECOND_NS
from cotenant.domain.kernel import KernelIdentity, Work
from cotenant.domain.protect import GpuWatch, Health, Stage
from cotenant.format.known import FILE_NAME, MAGIC, key_of
from cotenant.live.softgpu import fault, manage
from cotenant.live.watch.device import Devices, Question
from tests.live.indoors import until
from tests.live.watched import LIMITS, Program, Watched, changed, eventually, tenant, watched

KERNEL_NS = 2 * MILLISECOND_NS
THREADS = 256


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Watched]:
    with watched(tmp_path) as made:
        yield made


def hang(stage: Watched, program: Program) -> None:
    """The next kernel of a program does not end; it is on the device when this returns."""

    def submitted() -> int:
        return next(int(client["submitted"]) for client in stage.books()["clients"] if client["pid"] == program.pid)

    fault.inject(stage.directory, 0, fault.KINDS["hang"], client=program.pid)
    before = submitted()
    program.tell("spin", KERNEL_NS, 1)
    until(lambda: submitted() >= before + 3)  # it, and the events before and behind it


def clear(stage: Watched, program: Program) -> None:
    """It ends after all."""
    fault.inject(stage.directory, 0, fault.KINDS["clear"])
    assert program.heard() == "done"


def knowing(stage: Watched, slot: int = 1) -> Program:
    """A program whose kernel is in its profile, and that launched it before."""
    kernel = KernelIdentity("spin", (1, 1, 1), (THREADS, 1, 1), 0, Work.KERNEL)
    entry = struct.pack("<4Q", key_of(stage.books()["name"], kernel), KERNEL_NS, KERNEL_NS, KERNEL_NS)
    (stage.hook.records / FILE_NAME).write_bytes(MAGIC + entry)
    program = stage.program(slot)
    for _ in range(2):  # one that need not ask is named after its first launch
        program.do("spin", KERNEL_NS, 1)
    assert stage.gate.page(slot)["device_ns"]
    return program


def test_a_device_is_looked_at_until_it_is_well_and_then_while_somebody_is_there(stage: Watched) -> None:
    stage.known.say(health=GpuWatch(Health.INIT))
    stage.start()
    stage.seen(3)
    stage.known.say(health=GpuWatch(Health.HEALTHY))
    until(lambda: stage.next_wakeup() is None)
    quiet = len(stage.told(GpuSeen))
    stage.known.say(tenant(1))
    stage.seen(2)
    assert stage.next_wakeup() is not None
    assert quiet <= len(stage.told(GpuSeen)) - 2
    shown = len(stage.told(GpuSeen))
    stage.known.say()
    until(lambda: stage.next_wakeup() is None)
    assert len(stage.told(GpuSeen)) >= shown + 2, "the last thing told of it is how they left it"


def test_xids_are_told_once_and_with_whom_they_are_about(stage: Watched) -> None:
    stage.known.say(tenant(0), tenant(1))
    stage.start()
    program = stage.program(1)
    stage.seen(1)
    fault.inject(stage.directory, 0, fault.KINDS["illegal-address"], client=program.pid)
    program.tell("spin", 1000, 1)
    assert eventually(lambda: stage.told(GpuFaulted)) == [GpuFaulted(0, 31, 1, 1)]
    stage.seen(2)
    assert len(stage.told(GpuFaulted)) == 1


def test_a_device_that_falls_off_the_bus_is_lost_once_and_back_once(stage: Watched) -> None:
    stage.known.say(tenant(1))
    stage.start()
    stage.seen(1)
    fault.inject(stage.directory, 0, fault.KINDS["device-lost"])
    assert len(eventually(lambda: stage.told(GpuLost))) == 1
    until(lambda: GpuFaulted(0, 79, -1, 0) in stage.events)
    stage.known.say(health=GpuWatch(Health.DISABLED))
    fault.reset(stage.directory, 0)
    until(lambda: stage.told(GpuBack))
    stage.seen(1)
    assert (len(stage.told(GpuLost)), len(stage.told(GpuBack))) == (1, 1)


def test_a_device_whose_server_is_gone_is_found_again_when_it_is_made_anew(stage: Watched) -> None:
    stage.known.say(tenant(1))
    stage.start()
    stage.seen(1)
    manage.destroy(stage.directory)
    until(lambda: stage.told(GpuLost))
    manage.create(stage.directory, "v100", 1)
    until(lambda: stage.told(GpuBack))
    stage.seen(1)


def test_a_device_that_does_not_answer_is_lost_and_the_loop_goes_on(
    stage: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cotenant.live.watch.node.DEADLINE_NS", 100 * MILLISECOND_NS)
    stage.known.say(tenant(1))
    stage.start()
    stage.seen(1)
    server = stage.books()["pid"]
    os.kill(server, signal.SIGSTOP)

    def is_lost() -> bool:
        """Where nothing is told twice; a slow machine may have lost it for a moment before, and found it again."""
        changes = [type(event) for event in list(stage.events) if isinstance(event, GpuLost | GpuBack)]
        assert changes == ([GpuLost, GpuBack] * len(changes))[: len(changes)]
        return len(changes) % 2 == 1

    try:
        until(is_lost)
        assert stage.next_wakeup() is not None, "the loop goes on"
    finally:
        os.kill(server, signal.SIGCONT)
    until(lambda: not is_lost())
    stage.seen(1)
    is_lost()


def test_a_kernel_that_does_not_end_is_found_by_its_profile(stage: Watched) -> None:
    stage.known.say(tenant(1))
    stage.start()
    program = knowing(stage)
    assert stage.told(TenantHangs) == []
    hang(stage, program)
    (told,) = eventually(lambda: stage.told(TenantHangs))
    assert (told.slot, told.generation) == (1, 1)
    assert told.waited_ns > max(LIMITS.hang_least_ns, LIMITS.hang_factor * told.expected_ns)
    assert told.expected_ns > 0
    assert "spin" in told.kernel
    stage.seen(5)
    assert len(stage.told(TenantHangs)) == 1
    clear(stage, program)


def test_what_only_looks_like_a_hang_is_none(stage: Watched) -> None:
    stage.known.say(tenant(0), tenant(1))
    stage.start()
    online, program = knowing(stage, 0), knowing(stage)
    looks = 3 * LIMITS.hang_least_ns // LIMITS.period_ns

    hang(stage, online)  # nobody ends an online tenant for that
    stage.seen(looks)
    clear(stage, online)

    stage.gate.seat(paused=True)
    stage.known.say(tenant(1, paused=True))
    program.tell("spin", KERNEL_NS, 1)  # waits at the gate
    stage.seen(looks)
    stage.gate.seat()
    stage.known.say(tenant(1))
    assert program.heard() == "done"

    stage.known.say(tenant(0))  # nobody judges it while it hangs and is not stopped
    hang(stage, program)
    os.kill(program.pid, signal.SIGSTOP)  # as a debugger does
    until(lambda: Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    stage.known.say(tenant(0), tenant(1))
    stage.seen(looks)
    assert stage.told(TenantHangs) == []
    stage.known.say(tenant(0))
    stage.next_wakeup()  # the watch has heard it
    os.kill(program.pid, signal.SIGCONT)
    clear(stage, program)

    stage.known.say(tenant(0), tenant(1))
    stage.seen(looks)  # it computes on the host
    assert stage.told(TenantHangs) == []


def test_a_kernel_that_nobody_knows_may_take_long(tmp_path: Path) -> None:
    with watched(tmp_path, changed(LIMITS, hang_unknown_ns=20 * SECOND_NS)) as stage:
        stage.known.say(tenant(1))
        stage.start()
        program = stage.program(1)
        hang(stage, program)
        stage.seen(3 * LIMITS.hang_least_ns // LIMITS.period_ns)
        assert stage.told(TenantHangs) == []
        clear(stage, program)


def test_who_is_held_back_is_drained_when_its_work_is_over(stage: Watched) -> None:
    stage.known.say(tenant(1))
    stage.start()
    program = knowing(stage)
    hang(stage, program)
    stage.seen(2)
    stage.gate.seat(paused=True)
    stage.known.say(tenant(1, stage=Stage.DRAINING, paused=True))
    stage.seen(5)
    assert stage.told(TenantDrained) == []
    clear(stage, program)
    assert eventually(lambda: stage.told(TenantDrained)) == [TenantDrained(1, 1)]
    stage.seen(3)
    assert len(stage.told(TenantDrained)) == 1


def test_activity_is_that_between_two_looks_where_the_driver_measures_it(tmp_path: Path) -> None:
    directory = tmp_path / "gpu"
    manage.create(directory, "h100", 2)
    devices = Devices([directory])
    question = Question(1, Gpu("second", 0, ("soft:1",)), sample=True)

    def activity_ppm() -> int:
        (seen,) = devices.look([question])
        assert seen.sample is not None
        return seen.sample.sm_activity_ppm

    worker = Program({**os.environ, **manage.env(directory), "CUDA_VISIBLE_DEVICES": "1"}, "worker.py")
    try:
        assert worker.heard() == "done"
        activity_ppm()
        worker.do("spin", 20 * MILLISECOND_NS, 1)
        assert 0 < activity_ppm() < 1_000_000 // 100  # one of 132 SMs
        assert activity_ppm() == 0
    finally:
        worker.kill()
        devices.close()
        manage.destroy(directory)
