"""Is it the same node under both clocks? The same facts at the same instants leave the same bytes in the journal."""

import selectors
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.apps.replay import replay_file
from cotenant.domain.event import (
    Event,
    NodeSettings,
    NodeStarted,
    NodeStopping,
    PeerLost,
    TenantJoined,
    TenantLeft,
    TenantResumed,
)
from cotenant.domain.gate import GateRules
from cotenant.domain.gpu import Gpu
from cotenant.domain.instant import MILLISECOND_NS, SECOND_NS, Instant
from cotenant.domain.plan import Reject
from cotenant.domain.tenant import Kind, TenantSpec, Terms
from cotenant.format.journal import TurnReader
from cotenant.host import Host, NodePorts, NodeWorld, replay
from cotenant.live.gate import LiveGates
from cotenant.live.journal import FileJournal, Recovery
from cotenant.live.loop import READ, LiveLoop
from cotenant.live.page import LivePages
from cotenant.machine.node import NodeMachine
from cotenant.sim.door import SimDoor
from cotenant.sim.journal import SimJournal
from cotenant.sim.ledger import SimLedgers
from cotenant.sim.loop import SimLoop
from cotenant.sim.node import SimNode
from cotenant.sim.warden import SimWardens
from tests.effort import examples

SLOTS = 3
Step: TypeAlias = tuple[Instant, Event | None]
"""What the node is told and when; None is SIGKILL and a new process at the same instant."""


class Told(NamedTuple):
    """What is left when a story is over: the journal, the segment before it, and what was heard and written."""

    journal: bytes
    previous: bytes
    heard: list[tuple[object, ...]]
    pages: list[Terms | None]
    rosters: list[GateRules | None]


class NotebookDoor(SimDoor):
    """Writes down what peers would hear; the handles are each world's own."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[object, ...]] = []

    def welcome(self, peer: int, tenant: str, terms: Terms, handles: tuple[int, ...]) -> None:
        self.heard.append(("welcome", peer, tenant, terms))

    def refuse(self, peer: int, reject: Reject) -> None:
        self.heard.append(("refuse", peer, reject))

    def farewell(self, peer: int, ending: str) -> None:
        self.heard.append(("farewell", peer, ending))

    def confirm(self, peer: int, tenants: tuple[str, ...], rules: GateRules) -> None:
        self.heard.append(("confirm", peer, tenants, rules))


def under_the_heap(node_settings: NodeSettings, story: list[Step], limit_bytes: int) -> Told:
    loop = SimLoop()
    journal = SimJournal(limit_bytes)
    door = NotebookDoor()
    node = SimNode(loop, NodeMachine, node_settings, journal=journal)
    node.door = door

    def happen(event: Event | None, now: Instant) -> None:
        if event is not None:
            node.deliver(event, now)
        elif node.up:  # a node that stopped by itself is not started again
            node.kill()
            node.start(None, now)

    loop.at(0, node.start, None)
    for when, event in story:
        loop.at(when, happen, event)
    loop.run(1 << 60)
    said = [node.pages.read(slot) for slot in range(SLOTS)]
    rosters = [node.gates.read(gpu) for gpu in range(len(node_settings.gpus))]
    return Told(journal.content(), journal.previous, door.heard, said, rosters)


class KilledError(Exception):
    """SIGKILL, as far as a test can."""


class ScriptedTime:
    """The clock and the selector of a live loop: time passes only where the loop waits, and never by itself."""

    def __init__(self, story: list[Step]) -> None:
        self.instant: Instant = 0
        self.story = list(story)
        self.deliver: Callable[[Event], None]
        self.stop: Callable[[str], None]

    def now(self) -> Instant:
        return self.instant

    def get_map(self) -> Mapping[int, object]:
        return {0: self}

    def select(self, timeout: float) -> list[tuple[selectors.SelectorKey, int]]:
        until = self.instant + round(timeout * SECOND_NS)
        if not self.story or self.story[0][0] > until:
            if not self.story and timeout >= 3600:
                self.stop("the story is over")
            self.instant = until
            return []
        self.instant = max(self.instant, self.story[0][0])
        ready = []
        while self.story and self.story[0][0] <= self.instant:
            _, event = self.story.pop(0)
            ready.append((selectors.SelectorKey(0, 0, READ, self._happen(event)), READ))
            if event is None:  # the rest is for the next process
                break
        return ready

    def _happen(self, event: Event | None) -> Callable[[int], None]:
        def happen(mask: int) -> None:
            if event is None:
                raise KilledError
            self.deliver(event)

        return happen


def under_the_clock(node_settings: NodeSettings, story: list[Step], limit_bytes: int, home: Path) -> Told:
    """The live loop, journal and pages; only time, the door and the descriptors are not the world's."""
    time = ScriptedTime(story)
    door = NotebookDoor()
    path = home / "journal"
    starts = 0
    while True:
        machine = NodeMachine()
        recovery = Recovery(path, TurnReader)
        replay(machine, recovery.turns())
        assert recovery.mend() == ""
        journal = FileJournal(path, limit_bytes)
        pages = LivePages(home / "pages")
        gates = LiveGates(home / "pages", SLOTS)
        loop = LiveLoop(time)
        loop._selector.close()
        loop._selector = time  # type: ignore[assignment]  # all of a selector that a loop needs
        time.deliver, time.stop = loop.post, loop.stop
        ports = NodePorts(door, pages, gates, SimLedgers(), SimWardens())
        loop.bind(Host(machine, NodeWorld(ports, loop.stop).deeds(), journal))
        starts += 1
        loop.post(NodeStarted(node_settings, "sim", starts))
        try:
            loop.run()
        except KilledError:
            continue
        finally:
            said = [pages.read(slot) for slot in range(SLOTS)]
            rosters = [gates.read(gpu) for gpu in range(len(node_settings.gpus))]
            pages.close()
            gates.close()
            journal.close()
        previous = home / "journal.1"
        before = previous.read_bytes() if previous.exists() else b""
        return Told(path.read_bytes(), before, door.heard, said, rosters)


WORK = TenantSpec(Kind.OFFLINE, 7, memory_bytes=3, share_ppm=200_000, command="python train.py")
SETTINGS = NodeSettings(SLOTS, 200 * MILLISECOND_NS, 0, gpus=(Gpu("a", 8), Gpu("b", 5)))


def test_one_story_under_both_clocks(tmp_path: Path) -> None:
    ms = MILLISECOND_NS
    story: list[Step] = [
        (10 * ms, TenantJoined(1, 11, 1000, WORK)),
        (10 * ms, TenantJoined(2, 12, 1000, WORK)),
        (20 * ms, TenantJoined(3, 13, 1000, WORK)),
        (30 * ms, TenantJoined(4, 14, 1000, WORK)),
        (40 * ms, PeerLost(2)),
        (50 * ms, None),
        (60 * ms, TenantResumed(1, 11, 1000, 0, 1)),
        (70 * ms, None),
        (80 * ms, TenantResumed(1, 13, 1000, 2, 1)),
        (270 * ms, TenantLeft(1, "exit 0")),  # at the very instant the grace ends
        (900 * ms, NodeStopping("told to")),
    ]
    told = under_the_heap(SETTINGS, story, 1 << 40)
    assert under_the_clock(SETTINGS, story, 1 << 40, tmp_path) == told
    assert [said[0] for said in told.heard] == ["welcome"] * 3 + ["refuse"] + ["welcome"] * 2 + ["farewell"]
    assert told.pages == [None] * SLOTS
    report = replay_file(tmp_path / "journal")
    assert (report.reproduced, report.turns) == (True, 13)


@pytest.mark.parametrize("after", [TenantJoined(2, 12, 1000, WORK), PeerLost(1), NodeStopping("again")])
def test_a_node_that_was_told_to_stop_hears_nothing_more(after: Event, tmp_path: Path) -> None:
    story: list[Step] = [(5, TenantJoined(1, 11, 1000, WORK)), (9, NodeStopping("told to")), (9, after)]
    told = under_the_heap(SETTINGS, story, 1 << 40)
    assert under_the_clock(SETTINGS, story, 1 << 40, tmp_path) == told


def test_a_node_that_stops_does_not_wake_at_the_same_instant(tmp_path: Path) -> None:
    ends = 5 + SETTINGS.grace_ns
    story: list[Step] = [(1, TenantJoined(1, 11, 1000, WORK)), (5, None), (ends, NodeStopping("told to"))]
    told = under_the_heap(SETTINGS, story, 1 << 40)
    assert under_the_clock(SETTINGS, story, 1 << 40, tmp_path) == told


peers = st.integers(1, 5)
pids = st.integers(11, 14)
events: st.SearchStrategy[Event | None] = st.one_of(
    st.builds(TenantJoined, peers, pids, st.just(1000), st.just(WORK)),
    st.builds(TenantJoined, peers, pids, st.just(1000), st.just(WORK)),
    st.builds(TenantResumed, peers, pids, st.just(1000), st.integers(0, SLOTS), st.integers(1, 3)),
    st.builds(TenantLeft, peers, st.just("exit 0")),
    st.builds(PeerLost, peers),
    st.none(),
)
gaps = st.sampled_from([0, 0, 1, 50, 100, 200, 250]).map(lambda number: number * MILLISECOND_NS)
node_settings = st.builds(
    NodeSettings,
    st.integers(1, SLOTS),
    st.sampled_from([0, 100, 200]).map(lambda number: number * MILLISECOND_NS),
    st.sampled_from([0, 0, 250]).map(lambda number: number * MILLISECOND_NS),
    st.sampled_from(["spread", "pack"]),
    st.sampled_from(["reserve", "overcommit"]),
    st.sampled_from([(), SETTINGS.gpus]),
)


@settings(max_examples=examples(60, 1500))
@given(node_settings, st.lists(st.tuples(gaps, events), max_size=25), st.sampled_from([0, 500, 1 << 40]), st.booleans())
def test_any_story_under_both_clocks(
    chosen: NodeSettings, told: list[tuple[int, Event | None]], limit_bytes: int, stops: bool
) -> None:
    now = 0
    story: list[Step] = []
    for gap, event in told:
        now += gap
        story.append((now, event))
    if stops:
        story.append((now, NodeStopping("told to")))
    with tempfile.TemporaryDirectory() as home:
        lived = under_the_clock(chosen, story, limit_bytes, Path(home))
    assert lived == under_the_heap(chosen, story, limit_bytes)
