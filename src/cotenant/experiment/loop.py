"""How fast does a turn go? The node machine under both clocks, beside a heap loop that does nothing else."""

from __future__ import annotations

import gc
import itertools
import os
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

from cotenant.domain.event import Event, NodeSettings, TenantJoined, TenantLeft
from cotenant.domain.gpu import Gpu
from cotenant.domain.instant import MICROSECOND_NS, SECOND_NS
from cotenant.domain.tenant import Kind, TenantSpec
from cotenant.errors import WorldError
from cotenant.format import wire
from cotenant.live.client import Connection, NodeAwayError, tenants_of
from cotenant.live.clock import LiveClock, pause
from cotenant.machine.node import NodeMachine
from cotenant.port import Journal
from cotenant.sim.journal import NoJournal, SimJournal
from cotenant.sim.loop import SimLoop
from cotenant.sim.node import SimNode

NODES: Final = 1_000
TENANTS: Final = 48
EVENTS: Final = 200_000
LIVE_TURNS: Final = 2_000
MEAN_NS: Final = 10**9
_SPEC: Final = TenantSpec(Kind.OFFLINE, 7, memory_bytes=1 << 28, share_ppm=10_000, task="bench", command="bench --loop")
_SETTINGS: Final = NodeSettings(64, 10**10, gpus=(Gpu("a", 1 << 35), Gpu("b", 1 << 35)))
_Told: TypeAlias = Callable[[Event, int], None]


def bench_loop(rounds: int, say: Callable[[str], None]) -> dict[str, object]:
    """Medians over interleaved rounds; a ratio is the median of the ratios within each round.

    One node on which tenants come and go, and a cluster of them under one heap, where memory rather than code decides.
    """
    rates: dict[str, list[float]] = {}
    bytes_per_event = 0.0
    for number in range(1, rounds + 1):
        say(f"round {number} of {rounds}: {EVENTS} events of {NODES} nodes and of one")
        for nodes in (NODES, 1):
            journal = _Journals()
            for name, work in (
                ("bare", lambda nodes=nodes: _come_and_go([_told_nobody] * nodes)),
                ("sim", lambda nodes=nodes: _come_and_go(_nodes(nodes, NoJournal))),
                ("journaled", lambda nodes=nodes, journal=journal: _come_and_go(_nodes(nodes, journal))),
            ):
                rates.setdefault(f"{name} {nodes}", []).append(_rate(work))
            bytes_per_event = journal.size_bytes() / EVENTS
    say(f"{LIVE_TURNS} turns of a live node")
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
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def _rate(work: Callable[[], float]) -> float:
    gc.collect()
    return EVENTS / work()


def _told_nobody(event: Event, when: int) -> None:
    """Where a node would be."""


class _Journals:
    """Makes the journals of many nodes and adds up what they hold."""

    def __init__(self) -> None:
        self._made: list[SimJournal] = []

    def __call__(self) -> SimJournal:
        self._made.append(SimJournal())
        return self._made[-1]

    def size_bytes(self) -> int:
        return sum(len(journal.content()) for journal in self._made)


def _nodes(count: int, new_journal: Callable[[], Journal]) -> list[_Told]:
    """Nodes whose machines run under the heap, each with its host and its doubles."""
    told: list[_Told] = []
    for _ in range(count):
        node = SimNode(SimLoop(), NodeMachine, _SETTINGS, journal=new_journal())
        node.start(None, 0)
        assert node.driver is not None
        told.append(node.driver.deliver)
    return told


def _come_and_go(nodes: list[_Told]) -> float:
    """Tenants join and leave on every node; returns the seconds it took, the making of the world not counted.

    With nodes that are told nobody this is the bare heap: order, chance and the making of the same events.
    """
    chance = random.Random(1)
    clock = LiveClock()
    loop = SimLoop()
    peers = itertools.count()

    def arrive(told: _Told, when: int) -> None:
        peer = next(peers)
        told(TenantJoined(peer, 1000 + peer, 1000, _SPEC), when)
        loop.at(when + int(chance.expovariate(1 / MEAN_NS)), leave, (told, peer))

    def leave(who: tuple[_Told, int], when: int) -> None:
        told, peer = who
        told(TenantLeft(peer, "exit 0"), when)
        loop.at(when + int(chance.expovariate(1 / MEAN_NS)), arrive, told)

    for told in nodes:
        for _ in range(TENANTS):
            loop.at(int(chance.expovariate(1 / MEAN_NS)), arrive, told)
    begin = clock.now()
    loop.take(EVENTS)
    return (clock.now() - begin) / SECOND_NS


def _live_turns() -> tuple[int, int]:
    """Turns of a real daemon, over its real socket, as its own clock saw them."""
    home = Path(tempfile.mkdtemp(prefix="cotenant-bench-"))
    arguments = ["--runtime", str(home / "run"), "--state", str(home / "state"), "--gpu", "a=32GiB"]
    node = subprocess.Popen([sys.executable, "-m", "cotenant", "node", *arguments], stderr=subprocess.DEVNULL)
    try:
        door = home / "run" / "node.sock"
        connection = _connect(door)
        for _ in range(LIVE_TURNS // 2):
            _, handed = connection.ask(wire.Join(wire.VERSION, _SPEC))
            for descriptor in handed:
                os.close(descriptor)
            connection.ask(wire.Leave("exit 0"))
        turns = tenants_of(door).turn_ns
        connection.close()
        return turns.quantile(0.5), turns.quantile(0.99)
    finally:
        node.send_signal(signal.SIGTERM)
        node.wait()
        shutil.rmtree(home, ignore_errors=True)


def _connect(door: Path) -> Connection:
    for _ in range(1200):  # a minute: on a busy machine it takes its time
        try:
            return Connection(door)
        except NodeAwayError:
            pause(0.05)
    raise WorldError("the bench's own node did not start; try `cotenant node` by hand to see why")
