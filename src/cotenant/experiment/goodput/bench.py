"""How much is answered in time, by whom, at which load? Policies and the default take turns under the same instants.

On the CPU all contenders are there all the time, each in a process of its own, and only one is under load at a time:
within a round each load is offered to all of them before the next load. One more process sends. On a machine of two
cores the sender and the server share them, which costs every contender alike; it needs some percent of a core.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.domain.goodput import Goodput
from cotenant.domain.instant import MILLISECOND_NS, SECOND_NS, Duration
from cotenant.domain.rhythm import Rhythm, bursty, steady
from cotenant.errors import WorldError
from cotenant.experiment.goodput.arena import Arena, CpuArena, ModelFigures
from cotenant.experiment.goodput.figures import GoodputCell, GoodputOfPolicy, Tried, cells_of, offered_by, policies_of
from cotenant.experiment.goodput.models import Served
from cotenant.experiment.goodput.replay import ReplayArena
from cotenant.experiment.goodput.stage import Player, Server, played
from cotenant.experiment.goodput.surface import Surface
from cotenant.experiment.serve.ways import ADMITTED, OURS
from cotenant.live.load.open import Terms
from cotenant.policy.schedule import SERVE_POLICIES
from cotenant.sim.arrivals import instants_of

LOADS: Final = (0.5, 0.8, 1.0, 1.3, 2.0)
ARRIVALS: Final = ("poisson", "bursty")
ARENAS: Final[dict[str, Callable[..., Arena]]] = {"onnx-cpu": CpuArena, "replay": ReplayArena}
SLO_TIMES: Final = 3.0
"""The objective of a model, in the p99 of its requests of one row alone."""
_BURST_RATIO: Final = 4.0
_BURST_LOW_NS: Final = 300 * MILLISECOND_NS
_BURST_HIGH_NS: Final = 100 * MILLISECOND_NS
_PATIENCE_NS: Final = 20 * SECOND_NS
_CLIENTS: Final = 24
_TRIES: Final = 5
"""Each twice as long as the one before."""


class Course(msgspec.Struct, frozen=True):
    """How long everything takes."""

    rounds: int = 3
    loads: tuple[float, ...] = LOADS
    warm_ns: Duration = 400 * MILLISECOND_NS
    cell_ns: Duration = 1400 * MILLISECOND_NS
    solo_ns: Duration = 4 * SECOND_NS
    capacity_ns: Duration = 6 * SECOND_NS
    profile_time: str = "12s"
    """Of each model."""
    small: bool = False
    slo_times: float = SLO_TIMES


FULL: Final = {
    "onnx-cpu": Course(),
    "replay": Course(rounds=1, cell_ns=3 * SECOND_NS, warm_ns=SECOND_NS, profile_time="20s"),
}
QUICK: Final = Course(
    rounds=1,
    loads=(0.8, 2.0),
    warm_ns=100 * MILLISECOND_NS,
    cell_ns=400 * MILLISECOND_NS,
    solo_ns=SECOND_NS // 2,
    capacity_ns=SECOND_NS // 2,
    profile_time="500ms",
    small=True,
)


class GoodputReport(msgspec.Struct, frozen=True, kw_only=True):
    """All loads, all contenders; the five figures are the least of ours over loads and arrivals."""

    runtime: str
    all_units: int
    """Of the device: cores, or percent of a GPU."""
    rounds: int
    slo_times: float
    """Objectives, in the p99 of requests alone."""
    models: list[ModelFigures]
    capacity_rps: float
    """What loads are parts of."""
    capacity_from: str
    bound_rps: float
    """What nobody can exceed under any load, with the same part of every model's requests."""
    ours: str
    default: str
    goodput_vs_bound: float
    goodput_vs_default: float | None
    """From 1.3 of the capacity on."""
    slo_attainment_admitted: float
    fairness: float
    goodput_hold: float
    goodput_vs_capacity: float
    """At the best load, in time over what is answered at most without objectives: sending and serving count there."""
    policies: list[GoodputOfPolicy]
    cells: list[GoodputCell]


def live_policies() -> list[str]:
    """Those that a server can follow; ours first."""
    names = list(SERVE_POLICIES)
    return sorted(names, key=lambda name: name != OURS)


def bench_goodput(
    runtime: str, rounds: int, say: Callable[[str], None], *, course: Course, policies: Sequence[str] = ()
) -> GoodputReport:
    """The whole course on this machine's cores, or on a software GPU."""
    with tempfile.TemporaryDirectory() as home:
        arena = ARENAS[runtime](Path(home), course.profile_time, small=course.small)
        return run_course(arena, course, rounds, say, list(policies) or live_policies())


def run_course(
    arena: Arena, course: Course, rounds: int, say: Callable[[str], None], names: Sequence[str]
) -> GoodputReport:
    """Measure, then let everybody serve."""
    player = Player()
    try:
        say("measuring what one request takes alone, and how many are answered at most")
        ground = _measure(arena, course, player, say)
        bench = _Bench(arena, course, player, ground, say)
        everybody = [*([arena.default] if arena.default not in names else []), *names]
        tries = bench.all_at_once(everybody, rounds) if arena.at_once else bench.one_by_one(everybody, rounds)
        return _report(arena, ground, course.slo_times, rounds, names, tries)
    finally:
        player.stop()
        arena.close()


class _Ground(msgspec.Struct, frozen=True):
    """What was measured before anybody is compared."""

    models: list[ModelFigures]
    capacity_rps: float
    capacity_from: str
    surface: Surface

    def slos_ns(self) -> list[Duration]:
        return [round(one.slo_ms * MILLISECOND_NS) for one in self.models]


def _measure(arena: Arena, course: Course, player: Player, say: Callable[[str], None]) -> _Ground:
    servers = arena.plain()
    try:
        for server in servers:
            server.wait()
        models = [_alone(player, servers[0], model, course) for model in arena.models]
        most = {server.name: _most(player, server, arena.models, course) for server in servers if arena.is_measured}
    finally:
        for server in servers:
            server.stop()
    say(f"profiling {len(models)} models")
    times = arena.profiled()
    arena.set_slos({one.name: one.slo_ms for one in models})
    slos_ns = {one.name: round(one.slo_ms * MILLISECOND_NS) for one in models}
    surface = Surface(times, slos_ns, arena.all_units)
    if not most:
        return _Ground(models, surface.full_rps(), "the bound from what runs were measured to take", surface)
    best = max(most, key=lambda name: most[name])
    how = f"{_CLIENTS} clients that wait for their answers, models in turn, no objectives, at {best}"
    return _Ground(models, round(most[best], 3), how, surface)


def _alone(player: Player, server: Server, model: Served, course: Course) -> ModelFigures:
    (found,) = _answered(player, server, [model], course.solo_ns, clients=1)
    size = sum(len(one.raw) for one in model.asked().inputs)
    return ModelFigures(model.name, found.p50_ms, found.p99_ms, round(course.slo_times * found.p99_ms, 3), size)


def _most(player: Player, server: Server, models: Sequence[Served], course: Course) -> float:
    return sum(one.answered_rps for one in _answered(player, server, models, course.capacity_ns, clients=_CLIENTS))


def _answered(
    player: Player, server: Server, models: Sequence[Served], for_ns: Duration, clients: int
) -> Sequence[Goodput]:
    """What clients got that wait for their answers. Where the machine stood still all the time, for longer."""
    said: Mapping[str, int] = {}
    for tries in range(_TRIES):
        until_ns = for_ns << tries
        terms = Terms(until_ns // 4, until_ns, _PATIENCE_NS)
        loaded = player.play(played(server, models, [0] * len(models), terms, clients=clients))
        if any(one.answered for one in loaded.models):
            return loaded.models
        said = loaded.statuses
        if said:
            break
    raise WorldError(f"{server.name!r} answers nothing for {[one.name for one in models]}, but says {dict(said)}")


class _Bench:
    def __init__(
        self, arena: Arena, course: Course, player: Player, ground: _Ground, say: Callable[[str], None]
    ) -> None:
        self._arena = arena
        self._course = course
        self._player = player
        self._ground = ground
        self._say = say

    def all_at_once(self, names: Sequence[str], rounds: int) -> list[Tried]:
        """Each load is offered to everybody before the next."""
        servers: list[Server] = []
        self._say(f"starting {len(names)} servers")
        try:
            for name in names:
                servers.append(self._arena.open(name))
                servers[-1].wait()
            tries = []
            for number in range(1, rounds + 1):
                for place, (arrival, load) in enumerate(self._loads(), 1):
                    step = f"load {place} of {len(ARRIVALS) * len(self._course.loads)}"
                    self._say(f"round {number} of {rounds}, {step}: {arrival}, {load:g} of the capacity")
                    tries += [self._try(server, arrival, load, number) for server in servers]
            return tries
        finally:
            for server in servers:
                server.stop()

    def one_by_one(self, names: Sequence[str], rounds: int) -> list[Tried]:
        """Each contender under all loads, then the next: where there is room for one at a time."""
        tries = []
        for number in range(1, rounds + 1):
            for name in names:
                self._say(f"round {number} of {rounds}: {name} ({names.index(name) + 1} of {len(names)}) starts")
                server = self._arena.open(name)
                try:
                    server.wait()
                    for arrival, load in self._loads():
                        self._say(f"round {number} of {rounds}: {name}, {arrival}, {load:g} of the capacity")
                        tries.append(self._try(server, arrival, load, number))
                finally:
                    server.stop()
        return tries

    def _loads(self) -> Iterator[tuple[str, float]]:
        return ((arrival, load) for arrival in ARRIVALS for load in self._course.loads)

    def _instants(self, arrival: str, load: float, number: int) -> dict[str, tuple[Duration, ...]]:
        """Of each model, as often as of the others; the same for every contender of a round."""
        course = self._course
        names = [model.name for model in self._arena.models]
        rate = load * self._ground.capacity_rps / len(names)
        rhythm: Rhythm = steady(rate)
        if arrival == "bursty":
            rhythm = bursty(rate, _BURST_RATIO, _BURST_LOW_NS, _BURST_HIGH_NS)
        seed = number * 1000 + course.loads.index(load) * 10
        return {
            name: instants_of(rhythm, course.warm_ns + course.cell_ns, seed + place) for place, name in enumerate(names)
        }

    def _try(self, server: Server, arrival: str, load: float, number: int) -> Tried:
        course, ground = self._course, self._ground
        instants = self._instants(arrival, load, number)
        terms = Terms(course.warm_ns, course.warm_ns + course.cell_ns, _PATIENCE_NS)
        asked = played(server, self._arena.models, ground.slos_ns(), terms, list(instants.values()))
        slower = self._arena.slower()
        before_ns = server.front_ns()
        loaded = self._player.play(asked)
        front_part = round((server.front_ns() - before_ns) / terms.until_ns, 3)
        found = loaded.models
        bounds = ground.surface.bounds(offered_by(found))
        simulated = None
        if server.name.removesuffix(ADMITTED) in SERVE_POLICIES:
            simulated = ground.surface.simulated(server.name, instants, course.warm_ns, course.cell_ns).goodput_per_s
        left_rps = None
        if self._arena.is_measured:
            left_rps = ground.surface.bounds(offered_by(found), loaded.core_part + front_part, slower).fair_rps
        return Tried(
            server.name,
            arrival,
            load,
            found,
            bounds.fair_rps,
            bounds.greedy_rps,
            simulated,
            loaded.core_part,
            front_part,
            slower,
            left_rps,
        )


def _report(
    arena: Arena, ground: _Ground, slo_times: float, rounds: int, names: Sequence[str], tries: Sequence[Tried]
) -> GoodputReport:
    cells = cells_of(tries, arena.default)
    policies = policies_of(cells)
    ours = OURS if OURS in names else names[0]
    mine = [one for one in policies if one.policy == ours]
    return GoodputReport(
        runtime=arena.runtime,
        all_units=arena.all_units,
        rounds=rounds,
        slo_times=slo_times,
        models=ground.models,
        capacity_rps=ground.capacity_rps,
        capacity_from=ground.capacity_from,
        bound_rps=ground.surface.full_rps(),
        ours=ours,
        default=arena.default,
        goodput_vs_bound=min(one.goodput_vs_bound for one in mine),
        goodput_vs_default=min(
            (one.goodput_vs_default for one in mine if one.goodput_vs_default is not None), default=None
        ),
        slo_attainment_admitted=min(one.slo_attainment_admitted for one in mine),
        fairness=min(one.fairness for one in mine),
        goodput_hold=min(one.goodput_hold for one in mine),
        goodput_vs_capacity=round(min(one.best_rps for one in mine) / ground.capacity_rps, 3),
        policies=policies,
        cells=cells,
    )
