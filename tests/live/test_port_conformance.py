"""Do both sides of every port keep what the port promises?"""

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cotenant.domain.action import Action, Grant, Refuse
from cotenant.domain.event import Event, NodeSettings, NodeStarted, PeerLost, TenantJoined
from cotenant.domain.gate import GatePolicy, GateRules, GateSeat
from cotenant.domain.plan import Reason, Reject
from cotenant.domain.tenant import Kind, TenantSpec, Terms
from cotenant.format import wire
from cotenant.format.journal import Turn, TurnReader
from cotenant.live.clock import LiveClock
from cotenant.live.cluster.door import BrainDoor
from cotenant.live.door import LiveDoor
from cotenant.live.gate import LiveGates
from cotenant.live.journal import FileJournal
from cotenant.live.ledger import LiveLedgers
from cotenant.live.page import LivePages
from cotenant.live.serve.engine import Engine
from cotenant.live.watch.warden import LiveWardens
from cotenant.port import Clock, ClusterDoor, Desk, Door, Gates, Journal, Ledgers, Pages, Runtime, Wardens
from cotenant.sim.cluster import ClusterWorld
from cotenant.sim.door import SimDoor
from cotenant.sim.gate import SimGates
from cotenant.sim.journal import SimJournal
from cotenant.sim.ledger import SimLedgers
from cotenant.sim.loop import SimLoop
from cotenant.sim.page import SimPages
from cotenant.sim.serve import SimServing
from cotenant.sim.warden import SimWardens
from tests.live.indoors import until
from tests.live.porches import LivePorch, Porch, SimPorch

IMPLEMENTATIONS: dict[Any, dict[str, type]] = {
    Clock: {"live": LiveClock, "sim": SimLoop},
    Journal: {"live": FileJournal, "sim": SimJournal},
    Pages: {"live": LivePages, "sim": SimPages},
    Gates: {"live": LiveGates, "sim": SimGates},
    Ledgers: {"live": LiveLedgers, "sim": SimLedgers},
    Wardens: {"live": LiveWardens, "sim": SimWardens},
    Door: {"live": LiveDoor, "sim": SimDoor},
    Runtime: {"live": Engine, "sim": SimServing},
    Desk: {"live": Engine, "sim": SimServing},
    ClusterDoor: {"live": BrainDoor, "sim": ClusterWorld},
}
SIDES = ("live", "sim")
both_sides = pytest.mark.parametrize("side", SIDES)

TERMS = Terms(
    slot=3, generation=5, kind=Kind.ONLINE, priority=2, share_ppm=300_000, memory_bytes=1 << 32, slo_ns=50, gpu=1
)
STARTED = NodeStarted(NodeSettings(4, 10**10), "test", 0)
TURNS: list[tuple[int, Event, list[Action]]] = [
    (5, STARTED, []),
    (6, TenantJoined(1, 100, 0, TenantSpec(Kind.OFFLINE, 7)), [Grant(2, 1, "a", TERMS)]),
    (6, PeerLost(2), [Refuse(3, 2, Reject(Reason.NO_SLOT, "none"))]),
]


@both_sides
@pytest.mark.parametrize("port", IMPLEMENTATIONS, ids=lambda port: port.__name__)
def test_the_implementation_has_the_port_s_methods(port: type, side: str) -> None:
    made = IMPLEMENTATIONS[port][side]
    promised = {name: method for name, method in vars(port).items() if callable(method) and not name.startswith("_")}
    assert promised
    for name, method in promised.items():
        asked = list(inspect.signature(method).parameters)
        assert list(inspect.signature(getattr(made, name)).parameters) == asked, f"{made.__name__}.{name}"


# -- Clock -----------------------------------------------------------------------------------------------------


@both_sides
def test_a_clock_never_goes_back_and_is_never_negative(side: str) -> None:
    clock: Clock = IMPLEMENTATIONS[Clock][side]()
    seen = []
    if isinstance(clock, SimLoop):
        for when in (30, 10, 20, 10, 0):
            clock.at(when, lambda loop, now: seen.append(loop.now()), clock)
        clock.run(25)
        seen.append(clock.now())
        clock.run(5)
    seen += [clock.now() for _ in range(1000)]
    assert seen == sorted(seen)
    assert all(isinstance(now, int) and now >= 0 for now in seen)


# -- Journal ---------------------------------------------------------------------------------------------------


class Book:
    """A journal of either side, and how its segments are read back."""

    def __init__(self, side: str, home: Path, limit_bytes: int) -> None:
        self._file = home / "journal"
        self.journal: Any = FileJournal(self._file, limit_bytes) if side == "live" else SimJournal(limit_bytes)

    def present(self) -> list[Turn]:
        if isinstance(self.journal, SimJournal):
            return list(self.journal.turns())
        return _turns(self._file.read_bytes())

    def previous(self) -> list[Turn]:
        if isinstance(self.journal, SimJournal):
            return _turns(self.journal.previous)
        return _turns(self._file.with_name("journal.1").read_bytes())

    def close(self) -> None:
        if isinstance(self.journal, FileJournal):
            self.journal.close()


def _turns(content: bytes) -> list[Turn]:
    position = 0

    def read(size: int) -> bytes:
        nonlocal position
        data = content[position : position + size]
        position += len(data)
        return data

    return list(TurnReader(read))


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Callable[[str, int], Book]]:
    with ExitStack() as stack:

        def make(side: str, limit_bytes: int) -> Book:
            made = Book(side, tmp_path, limit_bytes)
            stack.callback(made.close)
            return made

        yield make


@both_sides
def test_a_journal_gives_back_what_was_appended_at_once(side: str, book: Callable[[str, int], Book]) -> None:
    kept = book(side, 1 << 20)
    assert kept.present() == []
    for number, turn in enumerate(TURNS, 1):
        assert kept.journal.append(*turn) is False
        assert kept.present() == [Turn(*turn) for turn in TURNS[:number]]


@both_sides
def test_a_journal_says_when_a_segment_is_past_its_limit(side: str, book: Callable[[str, int], Book]) -> None:
    kept = book(side, 200)
    full = [kept.journal.append(*TURNS[1]) for _ in range(10)]
    assert full == sorted(full)
    assert not full[0]
    assert full[-1]


@both_sides
def test_a_new_segment_begins_with_its_head_and_keeps_the_one_before(
    side: str, book: Callable[[str, int], Book]
) -> None:
    kept = book(side, 1)
    for segment in range(3):
        written = kept.present()
        while not kept.journal.append(*TURNS[1]):  # past its limit, and twice its head
            written.append(Turn(*TURNS[1]))
        kept.journal.begin_segment(100 + segment, STARTED)
        assert kept.present() == [Turn(100 + segment, STARTED, [])]
        assert kept.previous() == [*written, Turn(*TURNS[1])]
    kept.journal.append(*TURNS[2])
    assert kept.present() == [Turn(102, STARTED, []), Turn(*TURNS[2])]


# -- Pages -----------------------------------------------------------------------------------------------------


@pytest.fixture
def pages(side: str, tmp_path: Path) -> Iterator[Pages]:
    if side == "sim":
        yield SimPages()
        return
    made = LivePages(tmp_path / "pages")
    yield made
    made.close()


@both_sides
def test_pages_say_what_was_published_until_it_is_revoked(pages: Pages) -> None:
    assert pages.read(3) is None
    handle = pages.publish(TERMS, 0)
    assert isinstance(handle, int)
    assert pages.read(3) == TERMS
    assert pages.read(4) is None
    pages.revoke(3, 5)
    assert pages.read(3) is None


@both_sides
def test_neighbours_come_and_go_and_the_terms_stay(pages: Pages) -> None:
    assert pages.neighbours(3) == -1
    pages.crowd(TERMS.gpu, 2)
    assert (pages.read(3), pages.neighbours(3)) == (None, -1)
    pages.publish(TERMS, 1)
    assert pages.neighbours(3) == 1
    pages.crowd(TERMS.gpu, 4)
    pages.crowd(TERMS.gpu + 1, 5)
    assert (pages.read(3), pages.neighbours(3), pages.neighbours(4)) == (TERMS, 4, -1)
    pages.publish(TERMS, 0)
    assert pages.neighbours(3) == 0
    pages.revoke(3, 5)
    assert pages.neighbours(3) == -1


@both_sides
def test_a_stale_generation_does_not_revoke_a_later_holder(pages: Pages) -> None:
    later = Terms(3, 6, Kind.OFFLINE, 9, 0, 0, 0, -1)
    pages.publish(TERMS, 0)
    pages.revoke(3, 5)
    pages.publish(later, 0)
    pages.revoke(3, 5)
    assert pages.read(3) == later
    pages.revoke(3, 6)
    pages.revoke(3, 6)
    assert pages.read(3) is None


@both_sides
def test_revoking_what_nobody_holds_is_no_error(pages: Pages) -> None:
    pages.revoke(0, 1)
    assert pages.read(0) is None
    assert isinstance(pages.publish(TERMS, 0), int)


# -- Gates -----------------------------------------------------------------------------------------------------

RULES = GateRules(GatePolicy.STRICT, 1, 2, 3, 4, 5, (GateSeat(0, 7, 2, online=True), GateSeat(3, 1, 9, online=False)))


@pytest.fixture
def gates(side: str, tmp_path: Path) -> Iterator[Gates]:
    if side == "sim":
        yield SimGates()
        return
    made = LiveGates(tmp_path / "pages", 4)
    yield made
    made.close()


@both_sides
def test_a_roster_says_what_was_said_last_and_of_its_own_device(gates: Gates) -> None:
    assert gates.read(0) is None
    gates.seat(1, RULES)
    assert (gates.read(0), gates.read(1)) == (None, RULES)
    gates.seat(0, GateRules())
    gates.seat(1, GateRules(seats=RULES.seats[1:]))
    assert (gates.read(0), gates.read(1)) == (GateRules(), GateRules(seats=RULES.seats[1:]))


@both_sides
def test_one_seat_changes_and_the_rest_of_the_roster_stays(gates: Gates) -> None:
    gates.seat(1, RULES)
    first, last = RULES.seats
    newcomer, later = GateSeat(2, 4, 5, online=False, least_ppm=9), GateSeat(3, 2, 1, online=True, paused=True)
    gates.sit(1, newcomer)
    assert gates.read(1) == msgspec.structs.replace(RULES, seats=(first, newcomer, last))
    gates.sit(1, later)
    gates.rise(1, first.slot)
    assert gates.read(1) == msgspec.structs.replace(RULES, seats=(newcomer, later))


@both_sides
def test_a_device_has_two_handles_and_no_device_none(gates: Gates) -> None:
    gates.seat(1, RULES)
    assert gates.handles(-1) == ()
    assert len(gates.handles(1)) == 2
    assert gates.handles(1) == gates.handles(1)


# -- Door ------------------------------------------------------------------------------------------------------


@pytest.fixture
def porch(side: str) -> Iterator[Porch]:
    made = LivePorch() if side == "live" else SimPorch()
    yield made
    made.close()


@both_sides
def test_a_peer_hears_welcome_refusal_confirmation_and_farewell_in_order(porch: Porch, tmp_path: Path) -> None:
    page = os.open(tmp_path, os.O_RDONLY)
    reject = Reject(Reason.NO_MEMORY, "too much")
    porch.door.welcome(porch.peer, "a", TERMS, (page,))
    porch.door.refuse(porch.peer, reject)
    porch.door.confirm(porch.peer, ("a", "b"), GateRules())
    porch.door.suspend(porch.peer, "others need it")
    porch.door.restore(porch.peer)
    porch.door.signal(porch.peer, "term", "evicted", again=True)
    porch.door.farewell(porch.peer, "exit 0")
    pushes = [wire.Suspend("others need it"), wire.Restore(), wire.Signal("term", "evicted", True)]
    assert porch.heard() == [TERMS, reject, ("a", "b"), *pushes, "exit 0"]
    os.close(page)


@both_sides
@pytest.mark.parametrize("knew", [True, False], ids=["a peer that left", "a number that never was"])
def test_a_peer_that_is_gone_is_told_nothing_and_that_is_no_error(porch: Porch, knew: bool, tmp_path: Path) -> None:
    page = os.open(tmp_path, os.O_RDONLY)
    peer = porch.peer
    if knew:
        porch.go_away()
    else:
        peer += 1000
    porch.door.welcome(peer, "a", TERMS, (page,))
    porch.door.refuse(peer, Reject(Reason.NO_SLOT, "none"))
    porch.door.confirm(peer, (), GateRules())
    porch.door.signal(peer, "kill", "evicted", again=False)
    porch.door.suspend(peer, "others need it")
    porch.door.restore(peer)
    porch.door.farewell(peer, "exit 0")
    os.close(page)
    if not knew:
        assert porch.heard() == []


@both_sides
def test_a_peer_s_number_is_never_used_again(porch: Porch) -> None:
    first = porch.peer
    porch.go_away()
    if isinstance(porch, LivePorch):
        other = porch._node.stranger()
        until(lambda: porch._node.door._peers)
        [second] = porch._node.door._peers
        other.close()
    else:
        assert isinstance(porch.door, SimDoor)
        second = porch.door.connect(lambda _: None)
    assert second > first
