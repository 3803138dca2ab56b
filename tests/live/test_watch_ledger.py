"""The ledger says what the device says, whoever died and however: while the node lives, and after it came back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.domain.event import GpuSeen, MemoryWanted, TenantFaulted
from cotenant.live.ledger import look_at
from cotenant.live.softgpu import fault
from tests.live.indoors import until
from tests.live.watched import CONTEXT_BYTES, Watched, eventually, tenant, watched

MIB = 1 << 20


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Watched]:
    with watched(tmp_path) as made:
        made.known.say(tenant(0), tenant(1))
        yield made


def test_contexts_count_as_the_device_says_and_are_remembered(stage: Watched) -> None:
    stage.start()
    program = stage.program(1)
    stage.agree()
    context_bytes = stage.device_bytes()
    assert context_bytes >= CONTEXT_BYTES
    program.do("take", 3 * MIB)
    stage.agree()
    assert stage.ledger_bytes() >= context_bytes + 3 * MIB
    look = look_at(stage.pages, 0)
    assert look is not None
    assert look.context_bytes == CONTEXT_BYTES  # its code is known apart
    program.kill()
    stage.agree()
    assert stage.ledger_bytes() == 0


def test_whoever_is_killed_in_the_midst_of_anything_leaves_nothing_behind(stage: Watched) -> None:
    chance = random.Random(7)
    stage.start()
    survivor = stage.program(0)
    survivor.do("take", 5 * MIB)
    for _ in range(2):
        programs = [stage.program(slot) for slot in (0, 1)]
        for program in programs:
            for _ in range(chance.randrange(3)):
                program.do("take", chance.randrange(1, 8) * MIB)
            program.tell("take", MIB)  # and does not hear the answer
        for program in programs:
            program.kill()
        stage.agree()
    assert [line.owner for line in stage.ledgers.lines(0)] != []
    survivor.do("take", MIB)
    stage.agree()
    survivor.kill()
    until(lambda: not stage.ledgers.lines(0))
    assert stage.device_bytes() == stage.ledger_bytes() == 0


def test_a_node_that_comes_back_finds_who_died_meanwhile(stage: Watched) -> None:
    stage.start()
    dead, alive = stage.program(0), stage.program(1)
    dead.do("take", 2 * MIB)
    alive.do("take", MIB)
    stage.agree()
    stage.stop()
    dead.kill()
    held = stage.ledgers.held(0, 0)
    assert held >= 2 * MIB  # nobody cleared it
    stage.known.say()  # all tenants have left meanwhile
    stage.start()
    stage.agree()
    until(lambda: stage.ledgers.held(0, 0) == 0)
    assert stage.ledgers.held(0, 1) >= MIB
    alive.kill()
    stage.agree()
    until(lambda: stage.next_wakeup() is None)  # nobody is there, nothing is left: it sleeps


def test_a_fault_and_a_wish_are_told(stage: Watched) -> None:
    stage.start()
    program = stage.program(1)
    fault.inject(stage.directory, 0, fault.KINDS["illegal-address"], client=program.pid)
    program.tell("spin", 1000, 1)
    assert eventually(lambda: stage.told(TenantFaulted)) == [TenantFaulted(1, 1, "cuda", 700)]
    program.process.wait()
    stage.seen(2)
    assert stage.told(TenantFaulted) == [TenantFaulted(1, 1, "cuda", 700)]
    assert stage.told(MemoryWanted) == []


def test_samples_carry_who_holds_what(stage: Watched) -> None:
    stage.start()
    online, offline = stage.program(0), stage.program(1)
    online.do("take", 7 * MIB)
    offline.do("take", 3 * MIB)
    stage.agree()
    stage.seen(2)  # the device may have been asked for the first before all that
    sample = stage.told(GpuSeen)[-1].sample
    assert sample.online_memory_bytes == stage.ledgers.held(0, 0)
    assert sample.offline_memory_bytes == stage.ledgers.held(0, 1)
    assert sample.online_memory_bytes + sample.offline_memory_bytes == sample.memory_used_bytes
    assert sample.memory_bytes == 16 << 30
    assert sample.clock_ppm == 1_000_000
    assert 0 <= sample.sm_activity_ppm <= sample.utilization_ppm <= 1_000_000
