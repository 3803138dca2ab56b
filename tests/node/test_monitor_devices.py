"""The monitor reports samples, Xids and their tenants, loss and return of a device, and hangs."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.hook.kernel_times import FILE_NAME, MAGIC, key_of
from cotenant.node.daemon.monitor.nvml_sampler import DeviceQuery, NvmlSampler
from cotenant.node.model.event import GpuFaulted, GpuLost, GpuRecovered, GpuSampled, TenantDrained, TenantHung
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.protection import ExitPhase, GpuWatch, Health
from cotenant.softgpu import fault, manage
from cotenant.softgpu.costs import HARDWARE
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS
from cotenant.workload.kernel import KernelIdentity, WorkKind
from tests.support.monitored_node import LIMITS, MonitoredNode, Program, changed, eventually, monitored_node, tenant
from tests.support.node_in_process import until

pytestmark = pytest.mark.live

KERNEL_NS = 2 * MILLISECOND_NS
THREADS = 256


@pytest.fixture
def monitored(tmp_path: Path) -> Iterator[MonitoredNode]:
    with monitored_node(tmp_path) as made:
        yield made


def hang(monitored: MonitoredNode, program: Program) -> None:
    """The next kernel of a program does not end; it is on the device when this returns."""

    def submitted() -> int:
        return next(
            int(client["submitted"])
            for client in monitored.device_counters()["clients"]
            if client["pid"] == program.pid
        )

    fault.inject(monitored.directory, 0, fault.KINDS["hang"], client=program.pid)
    before = submitted()
    program.tell("spin", KERNEL_NS, 1)
    until(lambda: submitted() >= before + 3)  # it, and the events before and behind it


def clear(monitored: MonitoredNode, program: Program) -> None:
    """It ends after all."""
    fault.inject(monitored.directory, 0, fault.KINDS["clear"])
    assert program.received() == "done"


def knowing(monitored: MonitoredNode, slot: int = 1) -> Program:
    """A program whose kernel is in its profile, and that launched it before."""
    kernel = KernelIdentity("spin", (1, 1, 1), (THREADS, 1, 1), 0, WorkKind.KERNEL)
    entry = struct.pack("<4Q", key_of(monitored.device_counters()["name"], kernel), KERNEL_NS, KERNEL_NS, KERNEL_NS)
    (monitored.hook.records / FILE_NAME).write_bytes(MAGIC + entry)
    program = monitored.program(slot)
    for _ in range(2):  # one that need not ask is named after its first launch
        program.do("spin", KERNEL_NS, 1)
    assert monitored.page(slot)["device_ns"]
    return program


def test_device_is_sampled_until_healthy_and_while_it_has_tenants(monitored: MonitoredNode) -> None:
    monitored.known.set_tenants(health=GpuWatch(Health.INIT))
    monitored.start()
    monitored.seen(3)
    monitored.known.set_tenants(health=GpuWatch(Health.HEALTHY))
    until(lambda: monitored.next_wakeup() is None)
    quiet = len(monitored.posted(GpuSampled))
    monitored.known.set_tenants(tenant(1))
    monitored.seen(2)
    assert monitored.next_wakeup() is not None
    assert quiet <= len(monitored.posted(GpuSampled)) - 2
    shown = len(monitored.posted(GpuSampled))
    monitored.known.set_tenants()
    until(lambda: monitored.next_wakeup() is None)
    assert len(monitored.posted(GpuSampled)) >= shown + 2, "the last thing reported of it is how they left it"


def test_xids_are_reported_once_with_their_tenant(monitored: MonitoredNode) -> None:
    monitored.known.set_tenants(tenant(0), tenant(1))
    monitored.start()
    program = monitored.program(1)
    monitored.seen(1)
    fault.inject(monitored.directory, 0, fault.KINDS["illegal-address"], client=program.pid)
    program.tell("spin", 1000, 1)
    assert eventually(lambda: monitored.posted(GpuFaulted)) == [GpuFaulted(0, 31, 1, 1)]
    monitored.seen(2)
    assert len(monitored.posted(GpuFaulted)) == 1


def test_device_off_the_bus_is_lost_once_and_recovered_once(monitored: MonitoredNode) -> None:
    monitored.known.set_tenants(tenant(1))
    monitored.start()
    monitored.seen(1)
    fault.inject(monitored.directory, 0, fault.KINDS["device-lost"])
    assert len(eventually(lambda: monitored.posted(GpuLost))) == 1
    until(lambda: GpuFaulted(0, 79, -1, 0) in monitored.events)
    monitored.known.set_tenants(health=GpuWatch(Health.DISABLED))
    fault.reset(monitored.directory, 0)
    until(lambda: monitored.posted(GpuRecovered))
    monitored.seen(1)
    assert (len(monitored.posted(GpuLost)), len(monitored.posted(GpuRecovered))) == (1, 1)


def test_recreated_device_is_recovered(monitored: MonitoredNode) -> None:
    monitored.known.set_tenants(tenant(1))
    monitored.start()
    monitored.seen(1)
    manage.destroy(monitored.directory)
    until(lambda: monitored.posted(GpuLost))
    manage.create(monitored.directory, "v100", 1)
    until(lambda: monitored.posted(GpuRecovered))
    monitored.seen(1)


def test_device_that_does_not_answer_is_lost_without_blocking_the_loop(
    monitored: MonitoredNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cotenant.node.daemon.monitor.monitor.DEADLINE_NS", 100 * MILLISECOND_NS)
    monitored.known.set_tenants(tenant(1))
    monitored.start()
    monitored.seen(1)
    server = monitored.device_counters()["pid"]
    os.kill(server, signal.SIGSTOP)

    def is_lost() -> bool:
        """Assert that no event is posted twice; a slow machine may have lost and found the device before."""
        changes = [type(event) for event in list(monitored.events) if isinstance(event, GpuLost | GpuRecovered)]
        assert changes == ([GpuLost, GpuRecovered] * len(changes))[: len(changes)]
        return len(changes) % 2 == 1

    try:
        until(is_lost)
        assert monitored.next_wakeup() is not None, "the loop goes on"
    finally:
        os.kill(server, signal.SIGCONT)
    until(lambda: not is_lost())
    monitored.seen(1)
    is_lost()


def test_kernel_that_exceeds_its_profile_hangs(monitored: MonitoredNode) -> None:
    monitored.known.set_tenants(tenant(1))
    monitored.start()
    program = knowing(monitored)
    assert monitored.posted(TenantHung) == []
    hang(monitored, program)
    (hung,) = eventually(lambda: monitored.posted(TenantHung))
    assert (hung.slot, hung.generation) == (1, 1)
    assert hung.waited_ns > max(LIMITS.hang_least_ns, LIMITS.hang_factor * hung.expected_ns)
    assert hung.expected_ns > 0
    assert "spin" in hung.kernel
    monitored.seen(5)
    assert len(monitored.posted(TenantHung)) == 1
    clear(monitored, program)


def test_work_that_resembles_a_hang_is_not_reported(monitored: MonitoredNode) -> None:
    monitored.known.set_tenants(tenant(0), tenant(1))
    monitored.start()
    online, program = knowing(monitored, 0), knowing(monitored)
    looks = 3 * LIMITS.hang_least_ns // LIMITS.period_ns

    hang(monitored, online)  # an online tenant is not ended for a hang
    monitored.seen(looks)
    clear(monitored, online)

    monitored.set_paused(paused=True)
    monitored.known.set_tenants(tenant(1, paused=True))
    program.tell("spin", KERNEL_NS, 1)  # waits at the gate
    monitored.seen(looks)
    monitored.set_paused(paused=False)
    monitored.known.set_tenants(tenant(1))
    assert program.received() == "done"

    monitored.known.set_tenants(tenant(0))  # the program is not monitored until it is stopped
    hang(monitored, program)
    os.kill(program.pid, signal.SIGSTOP)  # as a debugger does
    until(lambda: Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    monitored.known.set_tenants(tenant(0), tenant(1))
    monitored.seen(looks)
    assert monitored.posted(TenantHung) == []
    monitored.known.set_tenants(tenant(0))
    monitored.next_wakeup()  # the watch has heard it
    os.kill(program.pid, signal.SIGCONT)
    clear(monitored, program)

    monitored.known.set_tenants(tenant(0), tenant(1))
    monitored.seen(looks)  # it computes on the host
    assert monitored.posted(TenantHung) == []


def test_kernel_without_a_profile_may_take_long(tmp_path: Path) -> None:
    with monitored_node(tmp_path, changed(LIMITS, hang_unknown_ns=20 * SECOND_NS)) as monitored:
        monitored.known.set_tenants(tenant(1))
        monitored.start()
        program = monitored.program(1)
        hang(monitored, program)
        monitored.seen(3 * LIMITS.hang_least_ns // LIMITS.period_ns)
        assert monitored.posted(TenantHung) == []
        clear(monitored, program)


def test_paused_tenant_is_drained_when_its_work_is_over(monitored: MonitoredNode) -> None:
    monitored.known.set_tenants(tenant(1))
    monitored.start()
    program = knowing(monitored)
    hang(monitored, program)
    monitored.seen(2)
    monitored.set_paused(paused=True)
    monitored.known.set_tenants(tenant(1, phase=ExitPhase.DRAINING, paused=True))
    monitored.seen(5)
    assert monitored.posted(TenantDrained) == []
    clear(monitored, program)
    assert eventually(lambda: monitored.posted(TenantDrained)) == [TenantDrained(1, 1)]
    monitored.seen(3)
    assert len(monitored.posted(TenantDrained)) == 1


def test_clock_of_an_idle_device_is_not_reported(tmp_path: Path) -> None:
    """NVML averages utilization, so that it stays high after the last kernel."""
    directory = tmp_path / "gpu"
    manage.create(directory, "v100", 1, costs=HARDWARE)
    devices = NvmlSampler([directory])
    question = DeviceQuery(0, Gpu("first", 0, ("soft:0",)), sample=True)

    def clock_ppm() -> int:
        (seen,) = devices.read([question])
        assert seen.sample is not None
        return seen.sample.clock_ppm

    worker = Program({**os.environ, **manage.env(directory)}, "worker.py")
    try:
        assert worker.received() == "done"
        worker.do("spin", MILLISECOND_NS, 1)
        assert eventually(lambda: clock_ppm() == 1_000_000)  # values of NVML appear later
        worker.kill()
        assert eventually(lambda: clock_ppm() == -1)
    finally:
        worker.kill()
        devices.close()
        manage.destroy(directory)


def test_activity_is_measured_between_two_samples(tmp_path: Path) -> None:
    directory = tmp_path / "gpu"
    manage.create(directory, "h100", 2)
    devices = NvmlSampler([directory])
    question = DeviceQuery(1, Gpu("second", 0, ("soft:1",)), sample=True)

    def activity_ppm() -> int:
        (seen,) = devices.read([question])
        assert seen.sample is not None
        return seen.sample.sm_activity_ppm

    worker = Program({**os.environ, **manage.env(directory), "CUDA_VISIBLE_DEVICES": "1"}, "worker.py")
    try:
        assert worker.received() == "done"
        activity_ppm()
        worker.do("spin", 20 * MILLISECOND_NS, 1)
        assert 0 < activity_ppm() < 1_000_000 // 100  # one of 132 SMs
        assert activity_ppm() == 0
    finally:
        worker.kill()
        devices.close()
        manage.destroy(directory)
