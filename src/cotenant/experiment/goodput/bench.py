"""How much is answered in time, by whom, at which load? Policies and the default take turns under the same instants.

All contenders are there all the time, each in a process of its own; only one is under load at a time. Within a round
each load is offered to all of them before the next load. One more process sends. On a machine of two cores the sender
and the server share them, which costs every contender alike; it needs some percent of a core.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.domain.instant import MILLISECOND_NS, SECOND_NS, Duration
from cotenant.domain.rhythm import Rhythm, bursty, steady
from cotenant.experiment.goodput.figures import GoodputCell, GoodputOfPolicy, Tried, cells_of, offered_by, policies_of
from cotenant.experiment.goodput.models import Served, make_models
from cotenant.experiment.goodput.stage import DEFAULT, Player, Server, default_command, played, serve_command
from cotenant.live.load.open import Terms
from cotenant.policy.schedule import SERVE_POLICIES
from cotenant.sim.arrivals import instants_of

LOADS: Final = (0.5, 0.8, 1.0, 1.3, 2.0)
ARRIVALS: Final = ("poisson", "bursty")
OURS: Final = "dstack"
ROUNDS: Final = 3
SLO_TIMES: Final = 3
"""The objective of a model, in the p99 of its requests of one row alone."""
_BURST_RATIO: Final = 4.0
_BURST_LOW_NS: Final = 300 * MILLISECOND_NS
_BURST_HIGH_NS: Final = 100 * MILLISECOND_NS
_PATIENCE_NS: Final = 20 * SECOND_NS
_CLIENTS: Final = 24


class Course(msgspec.Struct, frozen=True):
    """How long everything takes."""

    loads: tuple[float, ...] = LOADS
    warm_ns: Duration = 400 * MILLISECOND_NS
    cell_ns: Duration = 1600 * MILLISECOND_NS
    solo_ns: Duration = 4 * SECOND_NS
    capacity_ns: Duration = 6 * SECOND_NS
    small: bool = False


FULL: Final = Course()
QUICK: Final = Course(
    (0.8, 2.0), 100 * MILLISECOND_NS, 400 * MILLISECOND_NS, SECOND_NS // 2, SECOND_NS // 2, small=True
)


class ModelFigures(msgspec.Struct, frozen=True):
    """One model of the bench."""

    name: str
    solo_p50_ms: float
    solo_p99_ms: float
    """Of requests of one row, one after the other, at the default server."""
    slo_ms: float


class GoodputReport(msgspec.Struct, frozen=True):
    """All loads, all contenders; the five figures are the least of ours over loads and arrivals."""

    runtime: str
    cores: int
    rounds: int
    models: list[ModelFigures]
    capacity_rps: float
    capacity_from: str
    ours: str
    goodput_vs_bound: float | None
    goodput_vs_default: float | None
    slo_attainment_admitted: float
    fairness: float
    goodput_hold: float
    policies: list[GoodputOfPolicy]
    cells: list[GoodputCell]


def live_policies() -> list[str]:
    """Those that a server can follow; ours first."""
    names = [name for name in SERVE_POLICIES if name != "ideal"]
    return sorted(names, key=lambda name: name != OURS)


def bench_goodput(
    rounds: int, say: Callable[[str], None], *, course: Course = FULL, policies: Sequence[str] = ()
) -> GoodputReport:
    """The whole course."""
    names = list(policies) or live_policies()
    with tempfile.TemporaryDirectory() as home, contextlib.closing(_Bench(Path(home), course, say)) as bench:
        say("measuring what one request takes alone, and what the machine can answer")
        bench.measure()
        bench.start(names)
        tries = [one for number in range(1, rounds + 1) for one in bench.round(number, rounds)]
        return bench.report(names, rounds, tries)


class _Bench:
    def __init__(self, home: Path, course: Course, say: Callable[[str], None]) -> None:
        self._home = home
        self._course = course
        self._say = say
        self._folder = home / "models"
        self._folder.mkdir()
        self._models = make_models(self._folder, small=course.small)
        self._player = Player()
        self._servers: list[Server] = []
        self._solo: list[ModelFigures] = []
        self._capacity_rps = 0.0
        self._capacity_from = ""

    def close(self) -> None:
        for server in self._servers:
            server.stop()
        self._player.stop()

    def _open(self, name: str, command: Sequence[str]) -> Server:
        server = Server(name, command, self._home / f"{len(self._servers)}.log")
        self._servers.append(server)
        return server

    def measure(self) -> None:
        """Objectives from the default server, capacity from whoever answers more of the mix."""
        default = self._open(DEFAULT, default_command(self._folder))
        plain = self._open("fifo", serve_command(self._folder, "fifo", "--admit", "anyone"))
        for server in (default, plain):
            server.wait()
        self._solo = [self._alone(default, model) for model in self._models]
        found = {server.name: self._most(server) for server in (default, plain)}
        name = max(found, key=lambda one: found[one])
        self._capacity_rps = round(found[name], 3)
        self._capacity_from = (
            f"{_CLIENTS} clients that wait for their answers, models in turn, no objectives, at {name}"
        )
        self._servers.remove(plain)
        plain.stop()
        for one in self._solo:
            (self._folder / f"{one.name}.toml").write_text(f'slo = "{one.slo_ms:.3f}ms"\n')

    def _alone(self, server: Server, model: Served) -> ModelFigures:
        terms = Terms(self._course.solo_ns // 4, self._course.solo_ns, _PATIENCE_NS)
        (found,) = self._player.play(played(server, [model], [0], terms, clients=1)).models
        return ModelFigures(model.name, found.p50_ms, found.p99_ms, round(SLO_TIMES * found.p99_ms, 3))

    def _most(self, server: Server) -> float:
        terms = Terms(self._course.capacity_ns // 4, self._course.capacity_ns, _PATIENCE_NS)
        load = played(server, self._models, [0] * len(self._models), terms, clients=_CLIENTS)
        return sum(one.answered_rps for one in self._player.play(load).models)

    def start(self, names: Sequence[str]) -> None:
        """Every policy's server, now that there are objectives."""
        self._say(f"starting {len(names)} servers, and the default")
        for name in names:
            self._open(name, serve_command(self._folder, name)).wait()

    def round(self, number: int, rounds: int) -> Iterator[Tried]:
        """Every load once, each offered to everybody."""
        for arrival in ARRIVALS:
            for load in self._course.loads:
                self._say(f"round {number} of {rounds}: {arrival}, {load:g} of {self._capacity_rps:.0f} requests/s")
                seed = number * 1000 + self._course.loads.index(load) * 10
                instants = self.instants(arrival, load, seed)
                for server in self._servers:
                    yield self._try(server, arrival, load, instants)

    def instants(self, arrival: str, load: float, seed: int) -> list[tuple[Duration, ...]]:
        """Of each model, as often as of the others."""
        for_ns = self._course.warm_ns + self._course.cell_ns
        rate = load * self._capacity_rps / len(self._models)
        rhythm: Rhythm = steady(rate)
        if arrival == "bursty":
            rhythm = bursty(rate, _BURST_RATIO, _BURST_LOW_NS, _BURST_HIGH_NS)
        return [instants_of(rhythm, for_ns, seed + place) for place in range(len(self._models))]

    def _try(self, server: Server, arrival: str, load: float, instants: Sequence[Sequence[Duration]]) -> Tried:
        course = self._course
        terms = Terms(course.warm_ns, course.warm_ns + course.cell_ns, _PATIENCE_NS)
        slos_ns = [round(one.slo_ms * MILLISECOND_NS) for one in self._solo]
        found = self._player.play(played(server, self._models, slos_ns, terms, instants)).models
        return Tried(server.name, arrival, load, found, self._bound_rps(offered_by(found)))

    def _bound_rps(self, offered: Mapping[str, float]) -> float | None:
        del offered
        return None

    def report(self, names: Sequence[str], rounds: int, tries: Sequence[Tried]) -> GoodputReport:
        """All of it."""
        cells = cells_of(tries, DEFAULT)
        policies = policies_of(cells)
        ours = OURS if OURS in names else names[0]
        mine = [one for one in policies if one.policy == ours]
        bounds = [one.goodput_vs_bound for one in mine if one.goodput_vs_bound is not None]
        against = [one.goodput_vs_default for one in mine if one.goodput_vs_default is not None]
        return GoodputReport(
            runtime="onnx-cpu",
            cores=len(os.sched_getaffinity(0)),
            rounds=rounds,
            models=self._solo,
            capacity_rps=self._capacity_rps,
            capacity_from=self._capacity_from,
            ours=ours,
            goodput_vs_bound=min(bounds, default=None),
            goodput_vs_default=min(against, default=None),
            slo_attainment_admitted=min(one.slo_attainment_admitted for one in mine),
            fairness=min(one.fairness for one in mine),
            goodput_hold=min(one.goodput_hold for one in mine),
            policies=policies,
            cells=cells,
        )
