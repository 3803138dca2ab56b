"""The live and the simulated implementation of every port keep the port's contract.

That of `ClusterTransport` is in tests/cluster/test_transport.py, those of the server in tests/serve.
"""

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cotenant.cluster.kubernetes.controller.starts import Starts
from cotenant.cluster.ports import ClusterTransport
from cotenant.cluster.sim.cluster import SimCluster
from cotenant.gate.grant import Grant, Kind
from cotenant.gate.live_grants import LiveGrantPages
from cotenant.gate.live_ledgers import LiveLedgers
from cotenant.gate.live_tables import LiveTenantTables
from cotenant.gate.rules import GateEntry, GatePolicy, GateRules
from cotenant.gate.sim import SimGrantPages, SimLedgers, SimTenantTables
from cotenant.node import wire
from cotenant.node.daemon.enforcer import LiveEnforcer
from cotenant.node.daemon.listener import LiveListener
from cotenant.node.daemon.preemption import SoftwarePreemption
from cotenant.node.daemon.processes import LiveProcesses
from cotenant.node.journal import NodeJournalReader, NodeTurn
from cotenant.node.model.action import Action, IssueGrant, Refuse
from cotenant.node.model.admission import Reason, Reject
from cotenant.node.model.event import Event, NodeSettings, NodeStarted, PeerLost, TenantJoined
from cotenant.node.model.tenant import TenantSpec
from cotenant.node.ports import Enforcer, Gates, Ledgers, Listener, PageListener, Pages, Preemption, Processes
from cotenant.node.sim.listener import SimListener
from cotenant.node.sim.node import SimEnforcer
from cotenant.runner.clock import LiveClock
from cotenant.runner.journal_file import FileJournal
from cotenant.runner.journal_memory import SimJournal
from cotenant.runner.ports import Clock, Journal
from cotenant.runner.sim_loop import SimLoop
from cotenant.serve.frontend.engine import Engine
from cotenant.serve.ports import Responder, Runtime
from cotenant.serve.sim.server import SimServer
from cotenant.softgpu.sim.preemption import SimulatedPreemption
from tests.support.fake_processes import FakeProcesses, RecordingPageListener
from tests.support.listeners import ListenerFixture, LiveListenerFixture, SimListenerFixture
from tests.support.node_in_process import until

pytestmark = pytest.mark.live

IMPLEMENTATIONS: dict[Any, dict[str, type]] = {
    Clock: {"live": LiveClock, "sim": SimLoop},
    Journal: {"live": FileJournal, "sim": SimJournal},
    Pages: {"live": LiveGrantPages, "sim": SimGrantPages},
    Gates: {"live": LiveTenantTables, "sim": SimTenantTables},
    Ledgers: {"live": LiveLedgers, "sim": SimLedgers},
    Enforcer: {"live": LiveEnforcer, "sim": SimEnforcer},
    Listener: {"live": LiveListener, "sim": SimListener},
    PageListener: {"live": LiveListener, "sim": RecordingPageListener},
    Processes: {"live": LiveProcesses, "sim": FakeProcesses},
    Preemption: {"live": SoftwarePreemption, "sim": SimulatedPreemption},  # tests/node/test_preemption.py
    Runtime: {"live": Engine, "sim": SimServer},
    Responder: {"live": Engine, "sim": SimServer},
    ClusterTransport: {"live": Starts, "sim": SimCluster},
}
SIDES = ("live", "sim")
both_sides = pytest.mark.parametrize("side", SIDES)

GRANT = Grant(
    slot=3, generation=5, kind=Kind.ONLINE, priority=2, share_ppm=300_000, memory_bytes=1 << 32, slo_ns=50, gpu=1
)
STARTED = NodeStarted(NodeSettings(4, 10**10), "test", 0)
TURNS: list[tuple[int, Event, list[Action]]] = [
    (5, STARTED, []),
    (6, TenantJoined(1, 100, 0, TenantSpec(Kind.OFFLINE, 7)), [IssueGrant(2, 1, "a", GRANT)]),
    (6, PeerLost(2), [Refuse(3, 2, Reject(Reason.NO_SLOT, "none"))]),
]


@pytest.mark.parametrize(
    "port, side", [(port, side) for port, sides in IMPLEMENTATIONS.items() for side in sides], ids=str
)
def test_implementation_has_the_methods_of_the_port(port: type, side: str) -> None:
    implementation = IMPLEMENTATIONS[port][side]
    methods = {name: method for name, method in vars(port).items() if callable(method) and not name.startswith("_")}
    assert methods
    for name, method in methods.items():
        expected = list(inspect.signature(method).parameters)
        assert list(inspect.signature(getattr(implementation, name)).parameters) == expected, (
            f"{implementation.__name__}.{name}"
        )


# -- Clock -----------------------------------------------------------------------------------------------------


@both_sides
def test_clock_is_monotonic_and_not_negative(side: str) -> None:
    clock: Clock = IMPLEMENTATIONS[Clock][side]()
    instants = []
    if isinstance(clock, SimLoop):
        for when in (30, 10, 20, 10, 0):
            clock.at(when, lambda loop, now: instants.append(loop.now()), clock)
        clock.run(25)
        instants.append(clock.now())
        clock.run(5)
    instants += [clock.now() for _ in range(1000)]
    assert instants == sorted(instants)
    assert all(isinstance(now, int) and now >= 0 for now in instants)


# -- Journal ---------------------------------------------------------------------------------------------------


class JournalFixture:
    """A live or simulated journal whose segments can be read back."""

    def __init__(self, side: str, home: Path, limit_bytes: int) -> None:
        self._file = home / "journal"
        self.journal: Any = FileJournal(self._file, limit_bytes) if side == "live" else SimJournal(limit_bytes)

    def present(self) -> list[NodeTurn]:
        if isinstance(self.journal, SimJournal):
            return list(self.journal.turns(NodeJournalReader))
        return _turns(self._file.read_bytes())

    def previous(self) -> list[NodeTurn]:
        if isinstance(self.journal, SimJournal):
            return _turns(self.journal.previous)
        return _turns(self._file.with_name("journal.1").read_bytes())

    def close(self) -> None:
        if isinstance(self.journal, FileJournal):
            self.journal.close()


def _turns(content: bytes) -> list[NodeTurn]:
    position = 0

    def read(size: int) -> bytes:
        nonlocal position
        data = content[position : position + size]
        position += len(data)
        return data

    return list(NodeJournalReader(read))


@pytest.fixture
def make_journal(tmp_path: Path) -> Iterator[Callable[[str, int], JournalFixture]]:
    with ExitStack() as stack:

        def make(side: str, limit_bytes: int) -> JournalFixture:
            fixture = JournalFixture(side, tmp_path, limit_bytes)
            stack.callback(fixture.close)
            return fixture

        yield make


@both_sides
def test_journal_returns_appended_turns(side: str, make_journal: Callable[[str, int], JournalFixture]) -> None:
    fixture = make_journal(side, 1 << 20)
    assert fixture.present() == []
    for number, turn in enumerate(TURNS, 1):
        assert fixture.journal.append(*turn) is False
        assert fixture.present() == [NodeTurn(*turn) for turn in TURNS[:number]]


@both_sides
def test_journal_reports_a_full_segment(side: str, make_journal: Callable[[str, int], JournalFixture]) -> None:
    fixture = make_journal(side, 200)
    full = [fixture.journal.append(*TURNS[1]) for _ in range(10)]
    assert full == sorted(full)
    assert not full[0]
    assert full[-1]


@both_sides
def test_new_segment_begins_with_its_head_and_keeps_the_previous_segment(
    side: str, make_journal: Callable[[str, int], JournalFixture]
) -> None:
    fixture = make_journal(side, 1)
    for segment in range(3):
        written = fixture.present()
        while not fixture.journal.append(*TURNS[1]):  # a segment ends beyond its limit and twice the size of its head
            written.append(NodeTurn(*TURNS[1]))
        fixture.journal.begin_segment(100 + segment, STARTED)
        assert fixture.present() == [NodeTurn(100 + segment, STARTED, [])]
        assert fixture.previous() == [*written, NodeTurn(*TURNS[1])]
    fixture.journal.append(*TURNS[2])
    assert fixture.present() == [NodeTurn(102, STARTED, []), NodeTurn(*TURNS[2])]


# -- Pages -----------------------------------------------------------------------------------------------------


@pytest.fixture
def pages(side: str) -> Iterator[Pages]:
    if side == "sim":
        yield SimGrantPages()
        return
    live_pages = LiveGrantPages()
    yield live_pages
    live_pages.close()


@both_sides
def test_grant_is_readable_until_it_is_revoked(pages: Pages) -> None:
    assert pages.read(3) is None
    handle = pages.publish(GRANT, 0)
    assert isinstance(handle, int)
    assert pages.read(3) == GRANT
    assert pages.read(4) is None
    pages.revoke(3, 5)
    assert pages.read(3) is None


@both_sides
def test_neighbour_count_changes_and_the_grant_stays(pages: Pages) -> None:
    assert pages.neighbours(3) == -1
    pages.set_neighbour_count(GRANT.gpu, 2)
    assert (pages.read(3), pages.neighbours(3)) == (None, -1)
    pages.publish(GRANT, 1)
    assert pages.neighbours(3) == 1
    pages.set_neighbour_count(GRANT.gpu, 4)
    pages.set_neighbour_count(GRANT.gpu + 1, 5)
    assert (pages.read(3), pages.neighbours(3), pages.neighbours(4)) == (GRANT, 4, -1)
    pages.publish(GRANT, 0)
    assert pages.neighbours(3) == 0
    pages.revoke(3, 5)
    assert pages.neighbours(3) == -1


@both_sides
def test_revoke_of_an_earlier_generation_is_ignored(pages: Pages) -> None:
    later = Grant(3, 6, Kind.OFFLINE, 9, 0, 0, 0, -1)
    pages.publish(GRANT, 0)
    pages.revoke(3, 5)
    pages.publish(later, 0)
    pages.revoke(3, 5)
    assert pages.read(3) == later
    pages.revoke(3, 6)
    pages.revoke(3, 6)
    assert pages.read(3) is None


@both_sides
def test_revoke_of_a_free_slot_is_ignored(pages: Pages) -> None:
    pages.revoke(0, 1)
    assert pages.read(0) is None
    assert isinstance(pages.publish(GRANT, 0), int)


# -- Gates -----------------------------------------------------------------------------------------------------

RULES = GateRules(GatePolicy.STRICT, 1, 2, 3, 4, 5, (GateEntry(0, 7, 2, online=True), GateEntry(3, 1, 9, online=False)))


@pytest.fixture
def gates(side: str) -> Iterator[Gates]:
    if side == "sim":
        yield SimTenantTables()
        return
    tables = LiveTenantTables()
    yield tables
    tables.close()


@both_sides
def test_tenant_table_holds_the_last_value_of_its_device(gates: Gates) -> None:
    assert gates.read(0) is None
    gates.set_table(1, RULES)
    assert (gates.read(0), gates.read(1)) == (None, RULES)
    gates.set_table(0, GateRules())
    gates.set_table(1, GateRules(entries=RULES.entries[1:]))
    assert (gates.read(0), gates.read(1)) == (GateRules(), GateRules(entries=RULES.entries[1:]))


@both_sides
def test_upsert_changes_one_entry_only(gates: Gates) -> None:
    gates.set_table(1, RULES)
    first, last = RULES.entries
    new_entry, later = GateEntry(2, 4, 5, online=False, guaranteed_ppm=9), GateEntry(3, 2, 1, online=True, paused=True)
    gates.upsert(1, new_entry)
    assert gates.read(1) == msgspec.structs.replace(RULES, entries=(first, new_entry, last))
    gates.upsert(1, later)
    gates.remove(1, first.slot)
    assert gates.read(1) == msgspec.structs.replace(RULES, entries=(new_entry, later))


@both_sides
def test_device_has_two_handles_and_no_device_has_none(gates: Gates) -> None:
    gates.set_table(1, RULES)
    assert gates.handles(-1) == ()
    assert len(gates.handles(1)) == 2
    assert gates.handles(1) == gates.handles(1)


# -- Listener ------------------------------------------------------------------------------------------------------


@pytest.fixture
def fixture(side: str) -> Iterator[ListenerFixture]:
    fixture = LiveListenerFixture() if side == "live" else SimListenerFixture()
    yield fixture
    fixture.close()


@both_sides
def test_peer_receives_messages_in_order(fixture: ListenerFixture, tmp_path: Path) -> None:
    page = os.open(tmp_path, os.O_RDONLY)
    reject = Reject(Reason.NO_MEMORY, "too much")
    fixture.listener.welcome(fixture.peer, "a", GRANT, (page,))
    fixture.listener.refuse(fixture.peer, reject)
    fixture.listener.confirm(fixture.peer, ("a", "b"), GateRules())
    fixture.listener.suspend(fixture.peer, "others need it")
    fixture.listener.restore(fixture.peer)
    fixture.listener.signal(fixture.peer, "term", "evicted", may_restart=True)
    fixture.listener.farewell(fixture.peer, "exit 0")
    pushes = [wire.Suspend("others need it"), wire.Restore(), wire.Signal("term", "evicted", True)]
    assert fixture.received() == [GRANT, reject, ("a", "b"), *pushes, "exit 0"]
    os.close(page)


@both_sides
@pytest.mark.parametrize("was_connected", [True, False], ids=["disconnected peer", "unknown number"])
def test_message_to_a_closed_or_unknown_peer_is_ignored(
    fixture: ListenerFixture, was_connected: bool, tmp_path: Path
) -> None:
    page = os.open(tmp_path, os.O_RDONLY)
    peer = fixture.peer
    if was_connected:
        fixture.go_away()
    else:
        peer += 1000
    fixture.listener.welcome(peer, "a", GRANT, (page,))
    fixture.listener.refuse(peer, Reject(Reason.NO_SLOT, "none"))
    fixture.listener.confirm(peer, (), GateRules())
    fixture.listener.signal(peer, "kill", "evicted", may_restart=False)
    fixture.listener.suspend(peer, "others need it")
    fixture.listener.restore(peer)
    fixture.listener.farewell(peer, "exit 0")
    os.close(page)
    if not was_connected:
        assert fixture.received() == []


@both_sides
def test_peer_number_is_never_reused(fixture: ListenerFixture) -> None:
    first = fixture.peer
    fixture.go_away()
    if isinstance(fixture, LiveListenerFixture):
        other = fixture._node.stranger()
        until(lambda: fixture._node.listener._peers)
        [second] = fixture._node.listener._peers
        other.close()
    else:
        assert isinstance(fixture.listener, SimListener)
        second = fixture.listener.connect(lambda _: None)
    assert second > first
