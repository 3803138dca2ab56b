"""Device memory is attributed to tenants; what the hook did not see or the quota does not allow is found."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from cotenant.gate.grant import Grant, Kind
from cotenant.node.daemon.monitor.ledger_check import LedgerCheck
from cotenant.node.daemon.monitor.memory_use import TOLERANCE_BYTES, MemoryAttribution, reclaimable_bytes
from cotenant.node.model.event import Event, MemoryBypassed
from cotenant.node.model.protection import ExitPhase, Lifecycle
from cotenant.node.model.tenant import Tenant, TenantSpec
from cotenant.units.instant import SECOND_NS
from tests.support.process_pages import HookPages, Registry, peer_of

pytestmark = pytest.mark.live

MIB = 1 << 20
QUOTA = 1 << 30
NO_SUCH_PID = 1 << 22
RUNNING = Lifecycle()


def tenant(slot: int, quota_bytes: int = QUOTA, lifecycle: Lifecycle = RUNNING) -> Tenant:
    kind, priority = (Kind.OFFLINE, 7) if slot else (Kind.ONLINE, 2)
    spec = TenantSpec(kind, priority, memory_bytes=quota_bytes)
    grant = Grant(slot, 1, kind, priority, 0, quota_bytes, 0, 0)
    return Tenant(f"t{slot}", grant, spec, NO_SUCH_PID, 0, 0, lifecycle=lifecycle)


class Device:
    """A device with a supervised offline tenant, which has an attached process and another one that is not attached."""

    def __init__(self) -> None:
        self.registry = Registry(quota_bytes=QUOTA)
        self.posted: list[Event] = []
        self.attached, self.unattached, self.foreign = (subprocess.Popen(["sleep", "600"]) for _ in range(3))
        self.hook: HookPages = self.registry.attach(1, self.attached)[0]
        peer = peer_of(self.unattached)
        self.registry.processes.supervise((1, 1), peer)
        os.close(peer.pidfd)
        processes, ledgers = self.registry.processes, self.registry.ledgers
        self.check = LedgerCheck(0, ledgers, processes, self.posted.append)
        self.use = MemoryAttribution(0, self.check, ledgers, processes, self.posted.append)
        self.now = 0
        self.tenants = [tenant(0), tenant(1), tenant(2)]

    def reading(self, held: dict[int, int | None], reconnecting: tuple[tuple[int, int], ...] = ()) -> list[Event]:
        """Handle one reading; return what was posted."""
        self.now += SECOND_NS // 2
        before = len(self.posted)
        self.check.read({0: 1, 1: 1, 2: 1}, self.now)
        self.check.prepare()
        self.check.settle(held, is_complete=not self.use.is_unmatched)
        self.use.attribute(self.tenants, held, self.now, reconnecting)
        return self.posted[before:]

    def close(self) -> None:
        self.registry.close()
        for process in (self.attached, self.unattached, self.foreign):
            process.kill()
            process.wait()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    made = Device()
    # The sleepers descend from the test, which stands for the node here.
    monkeypatch.setattr(made.registry.processes, "is_of_node", lambda _: False)
    yield made
    made.close()


def test_process_without_pages_is_found_at_the_first_reading(device: Device) -> None:
    device.hook.write(allocated_bytes=500 * MIB)
    held: dict[int, int | None] = {device.attached.pid: 500 * MIB, device.unattached.pid: 300 * MIB}
    assert device.reading(held) == [MemoryBypassed(1, 1, 300 * MIB, 0, 800 * MIB)]
    account = device.registry.ledgers.snapshot(0).accounts[1]
    assert (account.measured_bytes, account.unseen_bytes, account.over_bytes) == (800 * MIB, 300 * MIB, 0)
    assert account.held_bytes == 800 * MIB, "it counts for the quota"
    assert device.reading(held) == [], "reported once"
    assert device.reading({device.attached.pid: 500 * MIB}) == [MemoryBypassed(1, 1, 0, 0, 500 * MIB)]


def test_memory_beyond_the_quota_is_reported_with_the_bypass(device: Device) -> None:
    [event] = device.reading({device.unattached.pid: 15 << 30})
    assert event == MemoryBypassed(1, 1, 15 << 30, 14 << 30, 15 << 30)


def test_excess_of_an_attached_process_counts_beyond_a_tolerance_and_twice_in_a_row(device: Device) -> None:
    device.hook.write(allocated_bytes=100 * MIB)
    pid = device.attached.pid
    assert device.reading({pid: 100 * MIB + TOLERANCE_BYTES}) == []
    assert device.reading({pid: 100 * MIB + TOLERANCE_BYTES}) == []
    more = 100 * MIB + TOLERANCE_BYTES + 1
    assert device.reading({pid: more}) == []
    assert device.reading({pid: more}) == [MemoryBypassed(1, 1, TOLERANCE_BYTES + 1, 0, more)]


def test_forged_record_does_not_hide_memory_beyond_the_quota(device: Device) -> None:
    device.hook.write(allocated_bytes=4 << 30)
    held: dict[int, int | None] = {device.attached.pid: 3 << 30}
    assert device.reading(held) == [], "device and records are read a moment apart"
    [event] = device.reading(held)
    assert event == MemoryBypassed(1, 1, 0, 2 << 30, 3 << 30)


def test_endless_call_does_not_hide_memory(device: Device) -> None:
    device.hook.write(begun=7)
    held: dict[int, int | None] = {device.attached.pid: 2 << 30}
    events = [*device.reading(held), *device.reading(held)]
    assert isinstance(events[-1], MemoryBypassed)
    assert device.registry.ledgers.snapshot(0).accounts[1].unseen_bytes == 2 << 30


def test_tenants_of_an_earlier_node_have_time_to_attach(device: Device) -> None:
    held: dict[int, int | None] = {device.unattached.pid: 300 * MIB}
    assert device.reading(held, reconnecting=((1, 1),)) == []
    assert device.registry.ledgers.held(0, 1) == 300 * MIB
    assert device.reading(held) == [MemoryBypassed(1, 1, 300 * MIB, 0, 300 * MIB)]


def test_memory_of_other_processes_is_foreign(device: Device) -> None:
    assert device.reading({device.foreign.pid: 700 * MIB}) == []
    assert device.use.foreign == {device.foreign.pid: 700 * MIB}
    assert device.registry.ledgers.snapshot(0).foreign_bytes == 700 * MIB
    assert device.use.holders == {device.foreign.pid}
    assert not device.use.is_unmatched


def test_numbers_of_another_namespace_are_unmatched_and_not_zero(device: Device) -> None:
    device.hook.write(allocated_bytes=100 * MIB, own_bytes=300 * MIB, contexts=1)
    held: dict[int, int | None] = {NO_SUCH_PID: 400 * MIB}
    device.reading({NO_SUCH_PID + 1: 5})
    for _ in range(2):
        device.reading(held)
    assert not device.use.is_unmatched, "the process may just have ended"
    device.reading(held)
    assert device.use.is_unmatched
    assert device.use.unmatched_bytes == 400 * MIB
    before = device.registry.ledgers.held(0, 1)
    device.hook.write(own_version=1)
    device.reading(held)
    assert device.registry.ledgers.held(0, 1) == 400 * MIB >= before


def test_device_that_hides_all_processes_is_unmatched(device: Device) -> None:
    device.hook.write(allocated_bytes=100 * MIB, own_bytes=300 * MIB, contexts=1)
    for _ in range(3):
        assert not device.use.is_unmatched
        device.reading({})
    assert device.use.is_unmatched


def test_ended_process_that_the_device_still_lists_is_not_unmatched(device: Device) -> None:
    device.hook.write(allocated_bytes=100 * MIB)
    pid = device.attached.pid
    device.reading({pid: 100 * MIB})
    device.attached.kill()
    device.attached.wait()
    while device.registry.processes.on(0):
        device.registry.loop.run_once()
    for _ in range(4):
        assert device.reading({pid: 100 * MIB}) == []
    assert not device.use.is_unmatched
    assert device.registry.ledgers.held(0, 1) == 100 * MIB


def test_unknown_amount_is_not_a_bypass(device: Device) -> None:
    assert device.reading({device.unattached.pid: None}) == []


def test_reclaimable_memory_is_what_offline_tenants_hold_and_the_device_confirms(device: Device) -> None:
    device.hook.write(allocated_bytes=900 * MIB)  # more than the device reports
    device.reading({device.attached.pid: 200 * MIB})
    assert reclaimable_bytes(device.tenants, device.registry.ledgers) == 200 * MIB
    suspended = tenant(1, lifecycle=Lifecycle(ExitPhase.SUSPENDED, suspended=True))
    assert reclaimable_bytes([tenant(0), suspended], device.registry.ledgers) == 0
