"""Bench `loop`: events per second of the node state machine under both clocks, compared with a bare heap loop."""

from __future__ import annotations

import gc
import itertools
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

from cotenant.gate.grant import Kind
from cotenant.node import wire
from cotenant.node.client.connection import Connection, NodeUnavailableError, list_tenants
from cotenant.node.directories import Directories
from cotenant.node.model.event import Event, NodeSettings, TenantJoined, TenantLeft
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.tenant import TenantSpec
from cotenant.node.sim.node import SimNode
from cotenant.node.state.node import NodeMachine
from cotenant.runner.clock import LiveClock, pause
from cotenant.runner.journal_memory import NullJournal, SimJournal
from cotenant.runner.ports import Journal
from cotenant.runner.sim_loop import SimLoop
from cotenant.units.instant import MICROSECOND_NS, SECOND_NS
from cotenant_lab.errors import RunFailedError

NODES: Final = 1_000
TENANTS: Final = 48
EVENTS: Final = 200_000
LIVE_TURNS: Final = 2_000
MEAN_NS: Final = 10**9
_SPEC: Final = TenantSpec(Kind.OFFLINE, 7, memory_bytes=1 << 28, share_ppm=10_000, task="bench", command="bench --loop")
_SETTINGS: Final = NodeSettings(64, 10**10, gpus=(Gpu("a", 1 << 35), Gpu("b", 1 << 35)))
_Deliver: TypeAlias = Callable[[Event, int], None]


def bench_loop(rounds: int, report: Callable[[str], None]) -> dict[str, object]:
    """Return medians over interleaved rounds; a ratio is the median of the ratios within each round.

    The bench runs one node on which tenants join and leave, and many nodes under one heap, where memory access
    dominates.
    """
    rates: dict[str, list[float]] = {}
    bytes_per_event = 0.0
    for number in range(1, rounds + 1):
        report(f"round {number} of {rounds}: {EVENTS} events of {NODES} nodes and of one")
        for nodes in (NODES, 1):
            journal = _Journals()
            for name, work in (
                ("bare", lambda nodes=nodes: _come_and_go([_ignore_event] * nodes)),
                ("sim", lambda nodes=nodes: _come_and_go(_nodes(nodes, NullJournal))),
                ("journaled", lambda nodes=nodes, journal=journal: _come_and_go(_nodes(nodes, journal))),
            ):
                rates.setdefault(f"{name} {nodes}", []).append(_rate(work))
            bytes_per_event = journal.size_bytes() / EVENTS
    report(f"{LIVE_TURNS} turns of a live node")
    p50_ns, p99_ns = _live_turns()
    return {
        "bench": "loop",
        "rounds": rounds,
        "events": EVENTS,
        "tenants_per_node": TENANTS,
        "bare_heap_events_per_s": statistics.median(rates["bare 1"]),
        "sim_events_per_s": statistics.median(rates["sim 1"]),
        "sim_journaled_events_per_s": statistics.median(rates["journaled 1"]),
        "vs_bare_heap": _ratio(rates["sim 1"], rates["bare 1"]),
        "vs_bare_heap_journaled": _ratio(rates["journaled 1"], rates["bare 1"]),
        "cluster_nodes": NODES,
        "cluster_bare_heap_events_per_s": statistics.median(rates[f"bare {NODES}"]),
        "cluster_sim_events_per_s": statistics.median(rates[f"sim {NODES}"]),
        "cluster_vs_bare_heap": _ratio(rates[f"sim {NODES}"], rates[f"bare {NODES}"]),
        "cluster_vs_bare_heap_journaled": _ratio(rates[f"journaled {NODES}"], rates[f"bare {NODES}"]),
        "journal_bytes_per_event": bytes_per_event,
        "live_turn_us_p50": p50_ns / MICROSECOND_NS,
        "live_turn_us_p99": p99_ns / MICROSECOND_NS,
    }


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(our_rate / their_rate for our_rate, their_rate in zip(ours, theirs, strict=True))


def _rate(work: Callable[[], float]) -> float:
    gc.collect()
    return EVENTS / work()


def _ignore_event(event: Event, when: int) -> None:
    """Stand in for a node."""


class _Journals:
    """Creates the journals of many nodes and sums their sizes."""

    def __init__(self) -> None:
        self._journals: list[SimJournal] = []

    def __call__(self) -> SimJournal:
        self._journals.append(SimJournal())
        return self._journals[-1]

    def size_bytes(self) -> int:
        return sum(len(journal.content()) for journal in self._journals)


def _nodes(count: int, new_journal: Callable[[], Journal]) -> list[_Deliver]:
    """Return nodes whose state machines run under the heap, each with simulated ports."""
    deliver: list[_Deliver] = []
    for _ in range(count):
        node = SimNode(SimLoop(), NodeMachine, _SETTINGS, journal=new_journal())
        node.start(None, 0)
        assert node.driver is not None
        deliver.append(node.driver.deliver)
    return deliver


def _come_and_go(nodes: list[_Deliver]) -> float:
    """Let tenants join and leave on every node; return the seconds it took, without setup.

    With nodes that ignore events this measures the bare heap: ordering, random numbers and creation of the same events.
    """
    rng = random.Random(1)
    clock = LiveClock()
    loop = SimLoop()
    peers = itertools.count()

    def arrive(deliver: _Deliver, when: int) -> None:
        peer = next(peers)
        deliver(TenantJoined(peer, 1000 + peer, 1000, _SPEC), when)
        loop.at(when + int(rng.expovariate(1 / MEAN_NS)), leave, (deliver, peer))

    def leave(tenant: tuple[_Deliver, int], when: int) -> None:
        deliver, peer = tenant
        deliver(TenantLeft(peer, "exit 0"), when)
        loop.at(when + int(rng.expovariate(1 / MEAN_NS)), arrive, deliver)

    for deliver in nodes:
        for _ in range(TENANTS):
            loop.at(int(rng.expovariate(1 / MEAN_NS)), arrive, deliver)
    begin = clock.now()
    loop.take(EVENTS)
    return (clock.now() - begin) / SECOND_NS


def _live_turns() -> tuple[int, int]:
    """Measure turns of a real daemon over its socket, by its own clock."""
    home = Path(tempfile.mkdtemp(prefix="cotenant-bench-"))
    arguments = ["--runtime-dir", str(home / "run"), "--state-dir", str(home / "state"), "--gpu", "a=32GiB"]
    node = subprocess.Popen([sys.executable, "-m", "cotenant", "node", *arguments], stderr=subprocess.DEVNULL)
    try:
        directories = Directories(home / "run", home / "state")
        connection = _connect(directories.operator_socket)
        for _ in range(LIVE_TURNS // 2):
            connection.ask(wire.Join(wire.VERSION, _SPEC))
            connection.ask(wire.Leave("exit 0"))
        turns = list_tenants(directories).turn_ns
        connection.close()
        return turns.quantile(0.5), turns.quantile(0.99)
    finally:
        node.send_signal(signal.SIGTERM)
        node.wait()
        shutil.rmtree(home, ignore_errors=True)


def _connect(socket_path: Path) -> Connection:
    for _ in range(1200):  # one minute, for a busy machine
        try:
            return Connection(socket_path)
        except NodeUnavailableError:
            pause(0.05)
    raise RunFailedError("the node of the bench did not start; run `cotenant node` to see why")
