"""Does the live loop deliver in order, never inside a turn, and wake whoever asked?"""

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cotenant.domain.action import Action
from cotenant.domain.event import Event, NodeSettings, NodeStarted, PeerLost, Woke
from cotenant.domain.instant import Instant
from cotenant.host import Host
from cotenant.live.loop import READ, WRITE, LiveLoop
from cotenant.sim.journal import NoJournal
from tests.live.indoors import SetClock, descriptors


class Recording:
    """A machine that remembers when it was told what, and may say something in the midst of it."""

    def __init__(self) -> None:
        self.told: list[tuple[Instant, Event]] = []
        self.inside = 0
        self.deepest = 0
        self.during: dict[Event, Callable[[], None]] = {}
        self.wake: Instant | None = None

    def handle(self, event: Event, *, now: Instant) -> list[Action]:
        self.inside += 1
        self.deepest = max(self.deepest, self.inside)
        self.told.append((now, event))
        self.during.get(event, lambda: None)()
        self.inside -= 1
        return []

    def next_wakeup(self) -> Instant | None:
        return self.wake

    def snapshot(self) -> Event:
        return NodeStarted(NodeSettings(0, 0), "", 0)

    def events(self) -> list[Event]:
        return [event for _, event in self.told]


class Bell:
    """Something timed that is not the machine."""

    def __init__(self, due: Instant | None, ring: Callable[[Instant], None]) -> None:
        self.due = due
        self.ring = ring

    def next_wakeup(self) -> Instant | None:
        return self.due

    def wake(self, now: Instant) -> None:
        self.due = None
        self.ring(now)


class Room:
    def __init__(self) -> None:
        self.clock = SetClock(100)
        self.loop = LiveLoop(self.clock)
        self.machine = Recording()
        self.ours, self.theirs = socket.socketpair()

    def bind(self) -> None:
        self.loop.bind(Host(self.machine, {}, NoJournal()))

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()
        self.loop.close()


@pytest.fixture
def room() -> Iterator[Room]:
    made = Room()
    yield made
    made.close()


def test_an_event_is_delivered_at_once_with_the_instant_of_the_clock(room: Room) -> None:
    room.bind()
    room.loop.post(PeerLost(1))
    room.clock.advance(5)
    room.loop.post(PeerLost(2))
    assert room.machine.told == [(100, PeerLost(1)), (105, PeerLost(2))]


def test_what_is_posted_during_a_turn_comes_after_it_in_order(room: Room) -> None:
    room.bind()

    def more() -> None:
        room.loop.post(PeerLost(2))
        room.loop.post(PeerLost(3))

    room.machine.during = {PeerLost(1): more, PeerLost(2): lambda: room.loop.post(PeerLost(4))}
    room.loop.post(PeerLost(1))
    assert room.machine.events() == [PeerLost(1), PeerLost(2), PeerLost(3), PeerLost(4)]
    assert room.machine.deepest == 1


def test_what_is_posted_before_there_is_a_host_waits_for_one(room: Room) -> None:
    room.loop.post(PeerLost(1))
    room.bind()
    room.loop.post(PeerLost(2))
    assert room.machine.events() == [PeerLost(1), PeerLost(2)]


def test_a_turn_that_fails_does_not_close_the_loop_for_ever(room: Room) -> None:
    room.bind()

    def fail() -> None:
        raise ZeroDivisionError

    room.machine.during = {PeerLost(1): fail}
    with pytest.raises(ZeroDivisionError):
        room.loop.post(PeerLost(1))
    room.loop.post(PeerLost(2))
    assert room.machine.events()[-1] == PeerLost(2)


def test_the_machine_is_woken_when_its_instant_has_come(room: Room) -> None:
    room.bind()
    room.machine.wake = 100

    def woken() -> None:
        room.machine.wake = None
        room.loop.stop("woken")

    room.machine.during = {Woke(): woken}
    room.loop.post(PeerLost(1))
    assert room.loop.run() == "woken"
    assert room.machine.told == [(100, PeerLost(1)), (100, Woke())]


def test_nobody_is_woken_before_its_instant(room: Room) -> None:
    room.bind()
    rung: list[tuple[str, Instant]] = []

    def last(now: Instant) -> None:
        rung.append(("overdue", now))
        room.loop.stop("done")

    room.machine.wake = 10**15
    room.loop.post(PeerLost(1))
    room.loop.add_timed(Bell(101, lambda now: rung.append(("late", now))))
    room.loop.add_timed(Bell(100, lambda now: rung.append(("due", now))))
    room.loop.add_timed(Bell(None, lambda now: rung.append(("never", now))))
    room.loop.add_timed(Bell(99, last))
    assert room.loop.run() == "done"
    assert rung == [("due", 100), ("overdue", 100)]
    assert room.machine.events() == [PeerLost(1)]


def test_the_wait_ends_with_the_first_instant_or_never(room: Room) -> None:
    assert room.loop._patience() == 3600.0
    room.loop.add_timed(Bell(100 + 2 * 10**9, lambda now: None))
    assert room.loop._patience() == pytest.approx(2.0)
    room.clock.advance(10**10)
    assert room.loop._patience() == 0.0


def test_a_descriptor_is_watched_as_asked_and_forgotten(room: Room) -> None:
    seen: list[int] = []

    def readable(mask: int) -> None:
        seen.append(mask)
        room.ours.recv(10)
        room.loop.watch(room.ours.fileno(), WRITE, writable)

    def writable(mask: int) -> None:
        seen.append(mask)
        room.loop.forget(room.ours.fileno())
        room.loop.stop("written")

    room.loop.watch(room.ours.fileno(), READ, readable)
    room.theirs.send(b"x")
    assert room.loop.run() == "written"
    assert seen == [READ, WRITE]


def test_what_was_closed_in_the_same_round_is_not_called(room: Room) -> None:
    called: list[Any] = []
    others = [socket.socketpair() for _ in range(4)]

    def first_comes(number: int) -> Callable[[int], None]:
        def ready(_: int) -> None:
            called.append(number)
            for mine, _theirs in others:
                room.loop.forget(mine.fileno())
            room.loop.stop("one")

        return ready

    for number, (mine, theirs) in enumerate(others):
        room.loop.watch(mine.fileno(), READ, first_comes(number))
        theirs.send(b"x")
    room.loop.run()
    assert len(called) == 1
    for pair in others:
        for one in pair:
            one.close()


def test_the_turns_are_measured(room: Room) -> None:
    room.bind()
    room.machine.during = {PeerLost(1): lambda: room.clock.advance(1000)}
    room.loop.post(PeerLost(1))
    histogram = room.loop.turn_ns.histogram()
    assert histogram.quantile(1.0) >= 1000


def test_closing_leaves_no_descriptor() -> None:
    before = descriptors()
    room = Room()
    room.close()
    assert descriptors() == before


def test_what_came_in_time_is_seen_before_the_deadline_though_we_got_no_processor(room: Room) -> None:
    seen: list[str] = []

    def stall(mask: int) -> None:
        """While we do this, the next one speaks, and its deadline passes."""
        del mask
        seen.append("stalled")
        room.loop.forget(room.ours.fileno())
        room.loop.watch(room.theirs.fileno(), READ, heard)
        room.ours.send(b"in time")
        room.clock.advance(100)

    def heard(mask: int) -> None:
        del mask
        seen.append("heard")
        room.loop.forget(room.theirs.fileno())

    def late(now: Instant) -> None:
        seen.append(f"late at {now}")
        room.loop.stop("late")

    room.loop.watch(room.ours.fileno(), READ, stall)
    room.loop.add_timed(Bell(150, late))
    room.theirs.send(b"first")
    room.loop.run()
    assert seen == ["stalled", "heard", "late at 200"]
