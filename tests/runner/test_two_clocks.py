"""The same events at the same instants give the same journal bytes under the live and the simulated clock."""

import selectors
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.gate.grant import Grant, Kind
from cotenant.gate.live_grants import LiveGrantPages
from cotenant.gate.live_tables import LiveTenantTables
from cotenant.gate.rules import GateRules
from cotenant.gate.sim import SimLedgers
from cotenant.node.host import NodeEffects, NodeHost, NodePorts
from cotenant.node.journal import NodeJournalReader
from cotenant.node.model.admission import Reject
from cotenant.node.model.event import (
    Event,
    NodeSettings,
    NodeStarted,
    NodeStopping,
    PeerLost,
    TenantJoined,
    TenantLeft,
    TenantResumed,
    TimerFired,
)
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.tenant import TenantSpec
from cotenant.node.sim.listener import SimListener
from cotenant.node.sim.node import SimEnforcer, SimNode
from cotenant.node.state.node import NodeMachine
from cotenant.runner.host import replay
from cotenant.runner.journal_file import FileJournal, Recovery
from cotenant.runner.journal_memory import SimJournal
from cotenant.runner.live_loop import READ, LiveLoop
from cotenant.runner.sim_loop import SimLoop
from cotenant.simulate.replay import replay_file
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS, Instant
from tests.support.effort import examples

pytestmark = pytest.mark.live

SLOTS = 3
Step: TypeAlias = tuple[Instant, Event | None]
"""The events that the node receives and their instants; None is SIGKILL and a new process at the same instant."""


class NodeOutput(NamedTuple):
    """The output of a scenario: the journal, its previous segment, messages to peers, grant pages and tenant tables."""

    journal: bytes
    previous: bytes
    received: list[tuple[object, ...]]
    pages: list[Grant | None]
    tenant_tables: list[GateRules | None]


class RecordingListener(SimListener):
    """Records the messages to peers without the handles, which differ between live and simulated runs."""

    def __init__(self) -> None:
        super().__init__()
        self.received: list[tuple[object, ...]] = []

    def welcome(self, peer: int, tenant: str, grant: Grant, handles: tuple[int, ...]) -> None:
        self.received.append(("welcome", peer, tenant, grant))

    def refuse(self, peer: int, reject: Reject) -> None:
        self.received.append(("refuse", peer, reject))

    def farewell(self, peer: int, ending: str) -> None:
        self.received.append(("farewell", peer, ending))

    def confirm(self, peer: int, tenants: tuple[str, ...], rules: GateRules) -> None:
        self.received.append(("confirm", peer, tenants, rules))


def run_simulated(node_settings: NodeSettings, scenario: list[Step], limit_bytes: int) -> NodeOutput:
    loop = SimLoop()
    journal = SimJournal(limit_bytes)
    listener = RecordingListener()
    node = SimNode(loop, NodeMachine, node_settings, journal=journal)
    node.listener = listener

    def deliver_or_kill(event: Event | None, now: Instant) -> None:
        if event is not None:
            node.deliver(event, now)
        elif node.up:  # a node that stopped by itself is not started again
            node.kill()
            node.start(None, now)

    loop.at(0, node.start, None)
    for when, event in scenario:
        loop.at(when, deliver_or_kill, event)
    loop.run(1 << 60)
    grants = [node.pages.read(slot) for slot in range(SLOTS)]
    tenant_tables = [node.gates.read(gpu) for gpu in range(len(node_settings.gpus))]
    return NodeOutput(journal.content(), journal.previous, listener.received, grants, tenant_tables)


class KilledError(Exception):
    """Stands for SIGKILL."""


class ScriptedTime:
    """The clock and the selector of a live loop: time passes only where the loop waits, and never by itself."""

    def __init__(self, scenario: list[Step]) -> None:
        self.instant: Instant = 0
        self.scenario = list(scenario)
        self.deliver: Callable[[Event], None]
        self.stop: Callable[[str], None]

    def now(self) -> Instant:
        return self.instant

    def get_map(self) -> Mapping[int, object]:
        return {0: self}

    def select(self, timeout: float) -> list[tuple[selectors.SelectorKey, int]]:
        until = self.instant + round(timeout * SECOND_NS)
        if not self.scenario or self.scenario[0][0] > until:
            if not self.scenario and timeout >= 3600:
                self.stop("the scenario is over")
            self.instant = until
            return []
        self.instant = max(self.instant, self.scenario[0][0])
        ready = []
        while self.scenario and self.scenario[0][0] <= self.instant:
            _, event = self.scenario.pop(0)
            ready.append((selectors.SelectorKey(0, 0, READ, self._deliver_or_kill(event)), READ))
            if event is None:  # the next process receives the remaining events
                break
        return ready

    def _deliver_or_kill(self, event: Event | None) -> Callable[[int], None]:
        def ready(mask: int) -> None:
            if event is None:
                raise KilledError
            self.deliver(event)

        return ready


def run_live(node_settings: NodeSettings, scenario: list[Step], limit_bytes: int, home: Path) -> NodeOutput:
    """Run with the live loop, journal and pages; only the clock, the listener and the selector are scripted."""
    time = ScriptedTime(scenario)
    listener = RecordingListener()
    path = home / "journal"
    starts = 0
    while True:
        machine = NodeMachine()
        recovery = Recovery(path, NodeJournalReader)
        replay(machine, recovery.turns())
        assert recovery.truncate_torn_tail() == ""
        journal = FileJournal(path, limit_bytes)
        pages = LiveGrantPages()
        gates = LiveTenantTables()
        loop: LiveLoop[Event] = LiveLoop(time, TimerFired())
        loop._selector.close()
        loop._selector = time  # type: ignore[assignment]  # has the methods of a selector that a loop uses
        time.deliver, time.stop = loop.post, loop.stop
        ports = NodePorts(listener, pages, gates, SimLedgers(), SimEnforcer())
        loop.bind(NodeHost(machine, NodeEffects(ports, loop.stop).effects(), journal))
        starts += 1
        loop.post(NodeStarted(node_settings, "sim", starts))
        try:
            loop.run()
        except KilledError:
            continue
        finally:
            grants = [pages.read(slot) for slot in range(SLOTS)]
            tenant_tables = [gates.read(gpu) for gpu in range(len(node_settings.gpus))]
            pages.close()
            gates.close()
            journal.close()
        previous = home / "journal.1"
        previous_bytes = previous.read_bytes() if previous.exists() else b""
        return NodeOutput(path.read_bytes(), previous_bytes, listener.received, grants, tenant_tables)


WORK = TenantSpec(Kind.OFFLINE, 7, memory_bytes=3, share_ppm=200_000, command="python train.py")
SETTINGS = NodeSettings(SLOTS, 200 * MILLISECOND_NS, 0, gpus=(Gpu("a", 8), Gpu("b", 5)))


def test_fixed_scenario_gives_the_same_output_under_both_clocks(tmp_path: Path) -> None:
    ms = MILLISECOND_NS
    scenario: list[Step] = [
        (10 * ms, TenantJoined(1, 11, 1000, WORK)),
        (10 * ms, TenantJoined(2, 12, 1000, WORK)),
        (20 * ms, TenantJoined(3, 13, 1000, WORK)),
        (30 * ms, TenantJoined(4, 14, 1000, WORK)),
        (40 * ms, PeerLost(2)),
        (50 * ms, None),
        (60 * ms, TenantResumed(1, 11, 1000, 0, 1)),
        (70 * ms, None),
        (80 * ms, TenantResumed(1, 13, 1000, 2, 1)),
        (270 * ms, TenantLeft(1, "exit 0")),  # at the instant at which the grace ends
        (900 * ms, NodeStopping("requested")),
    ]
    output = run_simulated(SETTINGS, scenario, 1 << 40)
    assert run_live(SETTINGS, scenario, 1 << 40, tmp_path) == output
    assert [message[0] for message in output.received] == ["welcome"] * 3 + ["refuse"] + ["welcome"] * 2 + ["farewell"]
    assert output.pages == [None] * SLOTS
    report = replay_file(tmp_path / "journal")
    assert (report.reproduced, report.turns) == (True, 13)


@pytest.mark.parametrize("after", [TenantJoined(2, 12, 1000, WORK), PeerLost(1), NodeStopping("again")])
def test_stopping_node_receives_no_further_events(after: Event, tmp_path: Path) -> None:
    scenario: list[Step] = [(5, TenantJoined(1, 11, 1000, WORK)), (9, NodeStopping("requested")), (9, after)]
    output = run_simulated(SETTINGS, scenario, 1 << 40)
    assert run_live(SETTINGS, scenario, 1 << 40, tmp_path) == output


def test_stopping_node_does_not_wake_at_the_same_instant(tmp_path: Path) -> None:
    ends = 5 + SETTINGS.grace_ns
    scenario: list[Step] = [(1, TenantJoined(1, 11, 1000, WORK)), (5, None), (ends, NodeStopping("requested"))]
    output = run_simulated(SETTINGS, scenario, 1 << 40)
    assert run_live(SETTINGS, scenario, 1 << 40, tmp_path) == output


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
def test_random_scenario_gives_the_same_output_under_both_clocks(
    chosen_settings: NodeSettings, steps: list[tuple[int, Event | None]], limit_bytes: int, stops: bool
) -> None:
    now = 0
    scenario: list[Step] = []
    for gap, event in steps:
        now += gap
        scenario.append((now, event))
    if stops:
        scenario.append((now, NodeStopping("requested")))
    with tempfile.TemporaryDirectory() as home:
        live = run_live(chosen_settings, scenario, limit_bytes, Path(home))
    assert live == run_simulated(chosen_settings, scenario, limit_bytes)
