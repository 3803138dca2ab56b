"""The ledger agrees with the device after any death, with a running and with a restarted node."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.node.model.event import GpuSampled, MemoryBypassed, MemoryRequested, TenantFaulted
from cotenant.softgpu import fault
from tests.support.monitored_node import CONTEXT_BYTES, MonitoredNode, eventually, monitored_node, tenant
from tests.support.node_in_process import until

pytestmark = pytest.mark.live

MIB = 1 << 20


@pytest.fixture
def monitored(tmp_path: Path) -> Iterator[MonitoredNode]:
    with monitored_node(tmp_path) as made:
        made.known.set_tenants(tenant(0), tenant(1))
        yield made


def test_context_sizes_are_measured_on_the_device_and_kept(monitored: MonitoredNode) -> None:
    monitored.start()
    program = monitored.program(1)
    monitored.agree()
    context_bytes = monitored.device_bytes()
    assert context_bytes >= CONTEXT_BYTES
    program.do("take", 3 * MIB)
    monitored.agree()
    assert monitored.ledger_bytes() >= context_bytes + 3 * MIB
    assert monitored.ledger().context_bytes == CONTEXT_BYTES  # its code is known apart
    program.kill()
    monitored.agree()
    assert monitored.ledger_bytes() == 0


def test_killed_process_leaves_no_ledger_line(monitored: MonitoredNode) -> None:
    rng = random.Random(7)
    monitored.start()
    survivor = monitored.program(0)
    survivor.do("take", 5 * MIB)
    for _ in range(2):
        programs = [monitored.program(slot) for slot in (0, 1)]
        for program in programs:
            for _ in range(rng.randrange(3)):
                program.do("take", rng.randrange(1, 8) * MIB)
            program.tell("take", MIB)  # and does not hear the answer
        for program in programs:
            program.kill()
        monitored.agree()
    assert monitored.lines() == 1
    survivor.do("take", MIB)
    monitored.agree()
    survivor.kill()
    until(lambda: not monitored.lines())
    monitored.agree()
    assert monitored.device_bytes() == 0


def test_processes_attach_again_to_a_restarted_node(monitored: MonitoredNode) -> None:
    monitored.start()
    dead, alive = monitored.program(0), monitored.program(1)
    dead.do("take", 2 * MIB)
    alive.do("take", MIB)
    monitored.agree()
    monitored.stop()
    dead.kill()
    monitored.start()
    until(lambda: monitored.lines() == 1)
    monitored.agree()
    assert monitored.held(0) == 0
    assert monitored.held(1) >= CONTEXT_BYTES + MIB
    assert monitored.posted(MemoryBypassed) == [], "they have time to attach again"
    monitored.known.set_tenants()  # all tenants have left meanwhile
    alive.kill()
    until(lambda: monitored.device_bytes() == 0)
    until(lambda: monitored.next_wakeup() is None)  # without tenants and processes the monitor sleeps


def test_fault_and_memory_request_are_reported(monitored: MonitoredNode) -> None:
    monitored.start()
    program = monitored.program(1)
    fault.inject(monitored.directory, 0, fault.KINDS["illegal-address"], client=program.pid)
    program.tell("spin", 1000, 1)
    assert eventually(lambda: monitored.posted(TenantFaulted)) == [TenantFaulted(1, 1, "cuda", 700, 0)]
    program.process.wait()
    monitored.seen(2)
    assert monitored.posted(TenantFaulted) == [TenantFaulted(1, 1, "cuda", 700, 0)]
    assert monitored.posted(MemoryRequested) == []


def test_samples_contain_the_memory_of_each_tenant(monitored: MonitoredNode) -> None:
    monitored.start()
    online, offline = monitored.program(0), monitored.program(1)
    online.do("take", 7 * MIB)
    offline.do("take", 3 * MIB)
    monitored.agree()
    monitored.seen(2)  # the device may have been asked for the first before all that
    sample = monitored.posted(GpuSampled)[-1].sample
    assert sample.online_memory_bytes == monitored.held(0)
    assert sample.offline_memory_bytes == monitored.held(1)
    assert sample.online_memory_bytes + sample.offline_memory_bytes == sample.memory_used_bytes
    assert sample.memory_bytes == 16 << 30
    assert sample.clock_ppm == 1_000_000
    assert 0 <= sample.sm_activity_ppm <= sample.utilization_ppm <= 1_000_000
