"""The live loop delivers events in order, never inside a turn, and wakes its timers on time."""

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cotenant.node.host import NodeHost
from cotenant.node.model.action import Action
from cotenant.node.model.event import Event, NodeSettings, NodeStarted, PeerLost, TimerFired
from cotenant.runner.journal_memory import NullJournal
from cotenant.runner.live_loop import READ, WRITE, LiveLoop
from cotenant.units.instant import Instant
from tests.support.node_in_process import ManualClock, descriptors

pytestmark = pytest.mark.live


class RecordingMachine:
    """A state machine that records each event with its instant, and may post another event during a turn."""

    def __init__(self) -> None:
        self.delivered: list[tuple[Instant, Event]] = []
        self.depth = 0
        self.max_depth = 0
        self.on_event: dict[Event, Callable[[], None]] = {}
        self.wake: Instant | None = None

    def handle(self, event: Event, *, now: Instant) -> list[Action]:
        self.depth += 1
        self.max_depth = max(self.max_depth, self.depth)
        self.delivered.append((now, event))
        self.on_event.get(event, lambda: None)()
        self.depth -= 1
        return []

    def next_wakeup(self) -> Instant | None:
        return self.wake

    def snapshot(self) -> Event:
        return NodeStarted(NodeSettings(0, 0), "", 0)

    def events(self) -> list[Event]:
        return [event for _, event in self.delivered]


class WakeRecorder:
    """A timer that records when it is woken."""

    def __init__(self, due: Instant | None, on_wake: Callable[[Instant], None]) -> None:
        self.due = due
        self.on_wake = on_wake

    def next_wakeup(self) -> Instant | None:
        return self.due

    def wake(self, now: Instant) -> None:
        self.due = None
        self.on_wake(now)


class LoopHarness:
    def __init__(self) -> None:
        self.clock = ManualClock(100)
        self.loop: LiveLoop[Event] = LiveLoop(self.clock, TimerFired())
        self.machine = RecordingMachine()
        self.own_end, self.other_end = socket.socketpair()

    def bind(self) -> None:
        self.loop.bind(NodeHost(self.machine, {}, NullJournal()))

    def close(self) -> None:
        self.own_end.close()
        self.other_end.close()
        self.loop.close()


@pytest.fixture
def harness() -> Iterator[LoopHarness]:
    loop_harness = LoopHarness()
    yield loop_harness
    loop_harness.close()


def test_event_is_delivered_with_the_instant_of_the_clock(harness: LoopHarness) -> None:
    harness.bind()
    harness.loop.post(PeerLost(1))
    harness.clock.advance(5)
    harness.loop.post(PeerLost(2))
    assert harness.machine.delivered == [(100, PeerLost(1)), (105, PeerLost(2))]


def test_events_posted_during_a_turn_follow_it_in_order(harness: LoopHarness) -> None:
    harness.bind()

    def post_two() -> None:
        harness.loop.post(PeerLost(2))
        harness.loop.post(PeerLost(3))

    harness.machine.on_event = {PeerLost(1): post_two, PeerLost(2): lambda: harness.loop.post(PeerLost(4))}
    harness.loop.post(PeerLost(1))
    assert harness.machine.events() == [PeerLost(1), PeerLost(2), PeerLost(3), PeerLost(4)]
    assert harness.machine.max_depth == 1


def test_event_posted_without_a_host_waits_for_one(harness: LoopHarness) -> None:
    harness.loop.post(PeerLost(1))
    harness.bind()
    harness.loop.post(PeerLost(2))
    assert harness.machine.events() == [PeerLost(1), PeerLost(2)]


def test_failed_turn_does_not_block_the_loop(harness: LoopHarness) -> None:
    harness.bind()

    def fail() -> None:
        raise ZeroDivisionError

    harness.machine.on_event = {PeerLost(1): fail}
    with pytest.raises(ZeroDivisionError):
        harness.loop.post(PeerLost(1))
    harness.loop.post(PeerLost(2))
    assert harness.machine.events()[-1] == PeerLost(2)


def test_state_machine_is_woken_at_its_instant(harness: LoopHarness) -> None:
    harness.bind()
    harness.machine.wake = 100

    def woken() -> None:
        harness.machine.wake = None
        harness.loop.stop("woken")

    harness.machine.on_event = {TimerFired(): woken}
    harness.loop.post(PeerLost(1))
    assert harness.loop.run() == "woken"
    assert harness.machine.delivered == [(100, PeerLost(1)), (100, TimerFired())]


def test_no_timer_is_woken_before_its_instant(harness: LoopHarness) -> None:
    harness.bind()
    wakes: list[tuple[str, Instant]] = []

    def last(now: Instant) -> None:
        wakes.append(("overdue", now))
        harness.loop.stop("done")

    harness.machine.wake = 10**15
    harness.loop.post(PeerLost(1))
    harness.loop.add_timer(WakeRecorder(101, lambda now: wakes.append(("late", now))))
    harness.loop.add_timer(WakeRecorder(100, lambda now: wakes.append(("due", now))))
    harness.loop.add_timer(WakeRecorder(None, lambda now: wakes.append(("never", now))))
    harness.loop.add_timer(WakeRecorder(99, last))
    assert harness.loop.run() == "done"
    assert wakes == [("due", 100), ("overdue", 100)]
    assert harness.machine.events() == [PeerLost(1)]


def test_wait_ends_at_the_earliest_instant(harness: LoopHarness) -> None:
    assert harness.loop._timeout_s() == 3600.0
    harness.loop.add_timer(WakeRecorder(100 + 2 * 10**9, lambda now: None))
    assert harness.loop._timeout_s() == pytest.approx(2.0)
    harness.clock.advance(10**10)
    assert harness.loop._timeout_s() == 0.0


def test_descriptor_is_watched_until_it_is_removed(harness: LoopHarness) -> None:
    calls: list[int] = []

    def readable(mask: int) -> None:
        calls.append(mask)
        harness.own_end.recv(10)
        harness.loop.watch(harness.own_end.fileno(), WRITE, writable)

    def writable(mask: int) -> None:
        calls.append(mask)
        harness.loop.forget(harness.own_end.fileno())
        harness.loop.stop("written")

    harness.loop.watch(harness.own_end.fileno(), READ, readable)
    harness.other_end.send(b"x")
    assert harness.loop.run() == "written"
    assert calls == [READ, WRITE]


def test_descriptor_closed_in_the_same_round_is_not_called(harness: LoopHarness) -> None:
    called: list[Any] = []
    others = [socket.socketpair() for _ in range(4)]

    def forget_all(number: int) -> Callable[[int], None]:
        def ready(_: int) -> None:
            called.append(number)
            for own_end, _other_end in others:
                harness.loop.forget(own_end.fileno())
            harness.loop.stop("called")

        return ready

    for number, (own_end, other_end) in enumerate(others):
        harness.loop.watch(own_end.fileno(), READ, forget_all(number))
        other_end.send(b"x")
    harness.loop.run()
    assert len(called) == 1
    for pair in others:
        for end in pair:
            end.close()


def test_turn_durations_are_measured(harness: LoopHarness) -> None:
    harness.bind()
    harness.machine.on_event = {PeerLost(1): lambda: harness.clock.advance(1000)}
    harness.loop.post(PeerLost(1))
    histogram = harness.loop.turn_ns.histogram()
    assert histogram.quantile(1.0) >= 1000


def test_close_releases_all_descriptors() -> None:
    before = descriptors()
    harness = LoopHarness()
    harness.close()
    assert descriptors() == before


def test_timely_data_is_handled_before_the_deadline_on_a_busy_machine(harness: LoopHarness) -> None:
    calls: list[str] = []

    def stall(mask: int) -> None:
        """Send data to the other end and let its deadline pass before it is read."""
        del mask
        calls.append("stalled")
        harness.loop.forget(harness.own_end.fileno())
        harness.loop.watch(harness.other_end.fileno(), READ, received)
        harness.own_end.send(b"in time")
        harness.clock.advance(100)

    def received(mask: int) -> None:
        del mask
        calls.append("received")
        harness.loop.forget(harness.other_end.fileno())

    def late(now: Instant) -> None:
        calls.append(f"late at {now}")
        harness.loop.stop("late")

    harness.loop.watch(harness.own_end.fileno(), READ, stall)
    harness.loop.add_timer(WakeRecorder(150, late))
    harness.other_end.send(b"first")
    harness.loop.run()
    assert calls == ["stalled", "received", "late at 200"]
