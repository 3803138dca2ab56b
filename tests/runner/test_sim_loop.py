"""The simulated loop runs steps in the order of their instants and kills a node as a process dies."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.gate.grant import Kind
from cotenant.node.host import NodeHost
from cotenant.node.journal import NodeJournalReader, NodeTurn
from cotenant.node.model.action import Action
from cotenant.node.model.event import (
    Event,
    NodeRestored,
    NodeSettings,
    PeerLost,
    TenantJoined,
    TenantLeft,
    TenantResumed,
    TimerFired,
)
from cotenant.node.model.tenant import TenantSpec
from cotenant.node.sim.node import SimNode
from cotenant.node.state.node import NodeMachine
from cotenant.runner.journal_memory import NullJournal, SimJournal
from cotenant.runner.sim_loop import SimDriver, SimLoop
from cotenant.units.instant import Instant

WORK = TenantSpec(Kind.OFFLINE, 7, command="python train.py")


class CallLog:
    """Records each call with its instant."""

    def __init__(self) -> None:
        self.entries: list[tuple[Any, Instant]] = []

    def record(self, argument: Any, now: Instant) -> None:
        self.entries.append((argument, now))


@given(st.lists(st.integers(0, 5), max_size=30))
def test_steps_run_by_instant_then_by_schedule_order(instants: list[int]) -> None:
    loop, calls = SimLoop(), CallLog()
    for number, when in enumerate(instants):
        loop.at(when, calls.record, number)
    loop.run(5)
    expected = sorted((when, number) for number, when in enumerate(instants))
    assert calls.entries == [(number, when) for when, number in expected]
    assert (loop.now(), loop.steps) == (5, len(instants))


def test_incomparable_steps_may_share_an_instant() -> None:
    loop, calls = SimLoop(), CallLog()
    loop.at(1, calls.record, {"a": 1})
    loop.at(1, calls.record, object)
    loop.at(1, calls.record, None)
    loop.run(1)
    assert calls.entries == [({"a": 1}, 1), (object, 1), (None, 1)]


def test_past_instant_means_now_after_due_steps() -> None:
    loop, calls = SimLoop(), CallLog()

    def late(_: Any, now: Instant) -> None:
        loop.at(now - 7, calls.record, "late")
        calls.record("late is scheduled", now)

    loop.at(10, late, None)
    loop.at(10, calls.record, "was due")
    loop.at(11, calls.record, "later")
    loop.run(20)
    assert calls.entries == [("late is scheduled", 10), ("was due", 10), ("late", 10), ("later", 11)]


def test_run_takes_due_steps_only() -> None:
    loop, calls = SimLoop(), CallLog()
    for when in (1, 2, 3):
        loop.at(when, calls.record, when)
    loop.run(2)
    assert (calls.entries, loop.now(), loop.steps) == ([(1, 1), (2, 2)], 2, 2)
    loop.run(2)
    assert loop.steps == 2
    loop.run(1)  # the clock never goes back
    assert loop.now() == 2
    loop.run(9)
    assert (calls.entries[-1], loop.now()) == ((3, 3), 9)


def test_a_step_may_schedule_another_within_the_same_run() -> None:
    loop, calls = SimLoop(start=100), CallLog()

    def schedule_next(remaining: int, now: Instant) -> None:
        calls.record(remaining, now)
        if remaining:
            loop.at(now + 5, schedule_next, remaining - 1)

    loop.at(0, schedule_next, 2)
    loop.run(105)
    assert calls.entries == [(2, 100), (1, 105)]


def test_take_counts_steps_instead_of_time() -> None:
    loop, calls = SimLoop(), CallLog()
    for when in (30, 10, 20):
        loop.at(when, calls.record, when)
    assert loop.take(2) == 2
    assert (calls.entries, loop.now()) == ([(10, 10), (20, 20)], 20)
    assert loop.take(5) == 1
    assert (loop.take(5), loop.steps) == (0, 3)


class WakeupMachine:
    """A state machine whose requested wake-ups are set by the test."""

    def __init__(self) -> None:
        self.requests: list[Instant | None] = []
        self.delivered: list[tuple[Event, Instant]] = []

    def handle(self, event: Event, *, now: Instant) -> list[Action]:
        self.delivered.append((event, now))
        if isinstance(event, TimerFired):
            self.requests.append(None)
        return []

    def next_wakeup(self) -> Instant | None:
        return self.requests[-1] if self.requests else None

    def snapshot(self) -> Event:
        return NodeRestored(NodeSettings(0, 0), 0, (), (), (), -1, -1)


@pytest.mark.parametrize(
    "requested, woken",
    [
        ([50], [50]),
        ([50, 50], [50]),  # requested twice
        ([50, 80], [80]),  # postponed
        ([50, 30], [30]),  # brought forward
        ([50, 80, 50], [50]),  # postponed and moved back
        ([50, None], []),  # withdrawn
        ([50, None, 50], [50]),
        ([50, None, 80], [80]),
        ([2], [2]),  # already past when requested: fires as soon as the loop runs
    ],
)
def test_wakeup_fires_once_at_the_last_requested_instant(requested: list[Instant | None], woken: list[Instant]) -> None:
    loop, machine = SimLoop(), WakeupMachine()
    driver: SimDriver[Event] = SimDriver(loop, NodeHost(machine, {}, NullJournal()), TimerFired())
    for now, instant in enumerate(requested):
        machine.requests.append(instant)
        driver.deliver(PeerLost(0), now)
    loop.run(1000)
    assert [now for event, now in machine.delivered if isinstance(event, TimerFired)] == woken


def test_wakeup_that_the_machine_postpones_fires_later() -> None:
    loop, machine = SimLoop(), WakeupMachine()
    driver: SimDriver[Event] = SimDriver(loop, NodeHost(machine, {}, NullJournal()), TimerFired())
    machine.requests.append(50)
    driver.deliver(PeerLost(0), 0)
    machine.requests.append(70)
    loop.run(1000)
    assert machine.delivered[1:] == [(TimerFired(), 70)]


# -- a node under the loop -------------------------------------------------------------------------------------


def journal_of(node: SimNode) -> list[NodeTurn]:
    assert isinstance(node.journal, SimJournal)
    return list(node.journal.turns(NodeJournalReader))


def test_killed_node_is_not_woken() -> None:
    loop = SimLoop()
    node = SimNode(loop, NodeMachine, NodeSettings(2, grace_ns=100))
    node.start(None, 0)
    node.deliver(TenantJoined(1, 10, 1000, WORK), 1)
    node.kill()
    node.start(None, 10)  # waits for its tenant until 110
    node.kill()
    node.start(None, 50)
    node.deliver(TenantResumed(2, 10, 1000, 0, 1), 60)
    turns = len(journal_of(node))
    loop.run(1000)
    assert len(journal_of(node)) == turns
    assert node.pages.read(0) is not None


def test_killed_node_receives_nothing_and_keeps_its_journal() -> None:
    loop = SimLoop()
    node = SimNode(loop, NodeMachine, NodeSettings(2, grace_ns=100))
    node.start(None, 0)
    node.deliver(TenantJoined(1, 10, 1000, WORK), 1)
    node.kill()
    node.deliver(TenantLeft(1, "exit 0"), 2)
    assert not node.up
    assert len(journal_of(node)) == 2
    node.start(None, 3)
    loop.run(102)
    assert node.pages.read(0) is not None
    loop.run(103)
    assert node.pages.read(0) is None


def test_an_idle_node_stops_and_stays_down() -> None:
    loop = SimLoop()
    node = SimNode(loop, NodeMachine, NodeSettings(2, grace_ns=100, idle_exit_ns=30))
    node.start(None, 0)
    loop.run(29)
    assert node.up
    loop.run(30)
    assert (node.up, node.stopped_because[:5]) == (False, "idle:")
    turns = len(journal_of(node))
    loop.run(1000)
    assert len(journal_of(node)) == turns


def test_peer_receives_the_decision_about_it() -> None:
    node = SimNode(SimLoop(), NodeMachine, NodeSettings(1, grace_ns=100))
    node.start(None, 0)
    received: list[object] = []
    first, second = node.listener.connect(received.append), node.listener.connect(received.append)
    node.deliver(TenantJoined(first, 10, 1000, WORK), 1)
    node.deliver(TenantJoined(second, 11, 1000, WORK), 2)
    node.deliver(TenantLeft(first, "exit 3"), 3)
    assert [type(message).__name__ for message in received] == ["Grant", "Reject", "str"]
    node.listener.disconnect(second)
    node.deliver(TenantJoined(second, 11, 1000, WORK), 4)  # a message to a closed connection is dropped
    assert len(received) == 3
