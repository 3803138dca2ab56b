"""Measure goodput of serving policies and of a default server under the same arrival instants.

On the CPU all contenders run all the time, each in its own process, and one at a time is under load: within a round
each load is offered to all of them before the next load. One more process sends. On a machine with two cores the sender
and the server share them, which costs every contender the same; the sender needs a few percent of a core.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.serve.load.open_loop import MeasureWindow
from cotenant.serve.model.goodput import Goodput
from cotenant.serve.policy import policy_names
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS, Duration
from cotenant.workload.arrivals import draw_instants
from cotenant.workload.rates import RateProcess, bursty_rate, constant_rate
from cotenant_lab.bench.goodput.contenders import Contenders, CpuContenders, ModelMetrics
from cotenant_lab.bench.goodput.metrics import (
    GoodputCell,
    LoadTrial,
    PolicyGoodput,
    WaterfallStep,
    cells_of,
    offered_by,
    policies_of,
    waterfall_of,
)
from cotenant_lab.bench.goodput.models import BenchModel
from cotenant_lab.bench.goodput.replay import ReplayContenders
from cotenant_lab.bench.goodput.servers import LoadProcess, Server, load_on
from cotenant_lab.bench.goodput.surface import Surface
from cotenant_lab.errors import RunFailedError
from cotenant_lab.serving.fairness import jain
from cotenant_lab.serving.modes import ADMITTED, OURS
from cotenant_lab.serving.simulated import Setting

LOADS: Final = (0.5, 0.8, 1.0, 1.3, 2.0)
ARRIVALS: Final = ("poisson", "bursty")
BOUND_LOADS: Final = (1.0, 1.3, 2.0)
"""Loads at which our policy is compared with the bound for all schedules of whole runs."""
WATERFALL_LOAD: Final = 1.3
BOUND_TARGET: Final = 0.9
ATTAINED_TARGET: Final = 0.99
HOLD_TARGET: Final = 0.95
CONTENDERS: Final[dict[str, Callable[..., Contenders]]] = {"onnx-cpu": CpuContenders, "replay": ReplayContenders}
SLO_TIMES: Final = 3.0
"""The objective of a model as a multiple of the p99 latency of its single-row requests alone."""
_BURST_RATIO: Final = 4.0
_BURST_LOW_NS: Final = 300 * MILLISECOND_NS
_BURST_HIGH_NS: Final = 100 * MILLISECOND_NS
_PATIENCE_NS: Final = 20 * SECOND_NS
_CLIENTS: Final = 24
_TRIES: Final = 5
"""Each attempt takes twice as long as the one before."""


class GoodputSettings(msgspec.Struct, frozen=True):
    """Durations, rounds and loads of a run of the bench."""

    rounds: int = 3
    loads: tuple[float, ...] = LOADS
    warm_ns: Duration = 400 * MILLISECOND_NS
    cell_ns: Duration = 1400 * MILLISECOND_NS
    solo_ns: Duration = 4 * SECOND_NS
    capacity_ns: Duration = 6 * SECOND_NS
    profile_time: str = "12s"
    """Time to profile each model."""
    small: bool = False
    slo_times: float = SLO_TIMES


FULL: Final = {
    "onnx-cpu": GoodputSettings(),
    "replay": GoodputSettings(rounds=1, cell_ns=12 * SECOND_NS, warm_ns=SECOND_NS, profile_time="20s"),
}
QUICK: Final = GoodputSettings(
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
    """Results of all contenders at all loads; the five ratios are our policy's minimum over loads and arrivals."""

    runtime: str
    all_units: int
    """Size of the device: cores, or percent of a GPU."""
    rounds: int
    slo_times: float
    """Objectives as a multiple of the p99 latency of requests alone."""
    models: list[ModelMetrics]
    capacity_rps: float
    """Loads are fractions of this rate."""
    capacity_from: str
    bound_rps: float
    """Upper bound of goodput under any load, with the same fraction of every model's requests answered."""
    ours: str
    default: str
    goodput_vs_bound: float
    goodput_vs_default: float | None
    """At loads of 1.3 times the capacity and more."""
    slo_attainment_admitted: float
    fairness: float
    goodput_hold: float
    goodput_vs_capacity: float
    """Best goodput over the highest rate without objectives; the cost of sending and of the front end is included."""
    vs_bound: dict[str, float]
    """By load, under Poisson arrivals: over the most that any schedule as fair as ours answers in time."""
    vs_bound_bursts: dict[str, float]
    vs_fluid_bound: dict[str, float]
    """By load, under Poisson arrivals: over the fluid bound with equal fractions."""
    waterfall: list[WaterfallStep]
    """Where goodput is lost at 1.3 times the capacity under Poisson arrivals."""
    met: dict[str, bool]
    policies: list[PolicyGoodput]
    cells: list[GoodputCell]


def live_policies() -> list[str]:
    """Return the policies that a server can run, ours first."""
    names = policy_names()
    return sorted(names, key=lambda name: name != OURS)


def bench_goodput(
    runtime: str, rounds: int, report: Callable[[str], None], *, settings: GoodputSettings, policies: Sequence[str] = ()
) -> GoodputReport:
    """Run the bench on this machine's cores or on a software GPU."""
    with tempfile.TemporaryDirectory() as home:
        contenders = CONTENDERS[runtime](Path(home), settings.profile_time, small=settings.small)
        return run_goodput(contenders, settings, rounds, report, list(policies) or live_policies())


def run_goodput(
    contenders: Contenders, settings: GoodputSettings, rounds: int, report: Callable[[str], None], names: Sequence[str]
) -> GoodputReport:
    """Measure the models, then put every contender under every load."""
    sender = LoadProcess()
    try:
        report("measuring what one request takes alone, and how many are answered at most")
        measured = _measure(contenders, settings, sender, report)
        bench = _Bench(contenders, settings, sender, measured, report)
        all_names = [*([contenders.default] if contenders.default not in names else []), *names]
        trials = bench.all_at_once(all_names, rounds) if contenders.at_once else bench.one_by_one(all_names, rounds)
        return _report(contenders, measured, settings.slo_times, rounds, names, trials)
    finally:
        sender.stop()
        contenders.close()


class _ModelMeasurements(msgspec.Struct, frozen=True):
    """Measurements that are made before contenders are compared."""

    models: list[ModelMetrics]
    capacity_rps: float
    capacity_from: str
    surface: Surface

    def slos_ns(self) -> list[Duration]:
        return [round(model.slo_ms * MILLISECOND_NS) for model in self.models]


def _measure(
    contenders: Contenders, settings: GoodputSettings, sender: LoadProcess, report: Callable[[str], None]
) -> _ModelMeasurements:
    servers = contenders.start_plain()
    try:
        for server in servers:
            server.wait()
        models = [_alone(sender, servers[0], model, settings) for model in contenders.models]
        max_rates = {
            server.name: _max_rate(sender, server, contenders.models, settings)
            for server in servers
            if contenders.is_measured
        }
    finally:
        for server in servers:
            server.stop()
    report(f"profiling {len(models)} models")
    times = contenders.profiled()
    contenders.set_slos({model.name: model.slo_ms for model in models})
    slos_ns = {model.name: round(model.slo_ms * MILLISECOND_NS) for model in models}
    surface = Surface(times, slos_ns, contenders.all_units)
    if not max_rates:
        return _ModelMeasurements(models, surface.full_rps(), "the bound computed from measured run times", surface)
    best = max(max_rates, key=lambda name: max_rates[name])
    source = f"{_CLIENTS} closed-loop clients, models in turn, no objectives, at {best}"
    return _ModelMeasurements(models, round(max_rates[best], 3), source, surface)


def _alone(sender: LoadProcess, server: Server, model: BenchModel, settings: GoodputSettings) -> ModelMetrics:
    (metrics,) = _answered(sender, server, [model], settings.solo_ns, clients=1)
    size = sum(len(tensor.raw) for tensor in model.request().inputs)
    return ModelMetrics(model.name, metrics.p50_ms, metrics.p99_ms, round(settings.slo_times * metrics.p99_ms, 3), size)


def _max_rate(sender: LoadProcess, server: Server, models: Sequence[BenchModel], settings: GoodputSettings) -> float:
    return sum(
        model.answered_rps for model in _answered(sender, server, models, settings.capacity_ns, clients=_CLIENTS)
    )


def _answered(
    sender: LoadProcess, server: Server, models: Sequence[BenchModel], for_ns: Duration, clients: int
) -> Sequence[Goodput]:
    """Return what closed-loop clients measured; if the machine answered nothing, try again for twice as long."""
    output: Mapping[str, int] = {}
    for trials in range(_TRIES):
        until_ns = for_ns << trials
        window = MeasureWindow(until_ns // 4, until_ns, _PATIENCE_NS)
        loaded = sender.play(load_on(server, models, [0] * len(models), window, clients=clients))
        if any(model.answered for model in loaded.models):
            return loaded.models
        output = loaded.statuses
        if output:
            break
    raise RunFailedError(
        f"{server.name!r} answers no request for {[model.name for model in models]}; statuses: {dict(output)}"
    )


class _Bench:
    def __init__(
        self,
        contenders: Contenders,
        settings: GoodputSettings,
        sender: LoadProcess,
        measured: _ModelMeasurements,
        report: Callable[[str], None],
    ) -> None:
        self._contenders = contenders
        self._settings = settings
        self._sender = sender
        self._measured = measured
        self._report = report

    def all_at_once(self, names: Sequence[str], rounds: int) -> list[LoadTrial]:
        """Offer each load to all contenders before the next load."""
        servers: list[Server] = []
        self._report(f"starting {len(names)} servers")
        try:
            for name in names:
                servers.append(self._contenders.open(name))
                servers[-1].wait()
            trials = []
            for number in range(1, rounds + 1):
                for index, (arrival, load) in enumerate(self._loads(), 1):
                    step = f"load {index} of {len(ARRIVALS) * len(self._settings.loads)}"
                    self._report(f"round {number} of {rounds}, {step}: {arrival}, {load:g} of the capacity")
                    trials += [self._trial(server, arrival, load, number) for server in servers]
            return trials
        finally:
            for server in servers:
                server.stop()

    def one_by_one(self, names: Sequence[str], rounds: int) -> list[LoadTrial]:
        """Put each contender under all loads before the next one starts: the device has capacity for one."""
        trials = []
        for number in range(1, rounds + 1):
            for name in names:
                self._report(f"round {number} of {rounds}: {name} ({names.index(name) + 1} of {len(names)}) starts")
                server = self._contenders.open(name)
                try:
                    server.wait()
                    for arrival, load in self._loads():
                        self._report(f"round {number} of {rounds}: {name}, {arrival}, {load:g} of the capacity")
                        trials.append(self._trial(server, arrival, load, number))
                finally:
                    server.stop()
        return trials

    def _loads(self) -> Iterator[tuple[str, float]]:
        return ((arrival, load) for arrival in ARRIVALS for load in self._settings.loads)

    def _instants(self, arrival: str, load: float, number: int) -> dict[str, tuple[Duration, ...]]:
        """Return the arrival instants by model, at equal rates; they are the same for every contender of a round.

        Arrivals pause before the measured time, so that the device is as empty as for the schedules of the bound.
        """
        settings = self._settings
        names = [model.name for model in self._contenders.models]
        rate = load * self._measured.capacity_rps / len(names)
        rhythm: RateProcess = constant_rate(rate)
        if arrival == "bursty":
            rhythm = bursty_rate(rate, _BURST_RATIO, _BURST_LOW_NS, _BURST_HIGH_NS)
        seed = number * 1000 + settings.loads.index(load) * 10
        pause_ns = min(max(self._measured.slos_ns()), settings.warm_ns)
        return {
            name: without(
                draw_instants(rhythm, settings.warm_ns + settings.cell_ns, seed + index),
                settings.warm_ns - pause_ns,
                settings.warm_ns,
            )
            for index, name in enumerate(names)
        }

    def _trial(self, server: Server, arrival: str, load: float, number: int) -> LoadTrial:
        settings, measured = self._settings, self._measured
        instants = self._instants(arrival, load, number)
        window = MeasureWindow(settings.warm_ns, settings.warm_ns + settings.cell_ns, _PATIENCE_NS)
        plan = load_on(server, self._contenders.models, measured.slos_ns(), window, list(instants.values()))
        slower = self._contenders.slower()
        before_ns = server.front_ns()
        loaded = self._sender.play(plan)
        front_part = round((server.front_ns() - before_ns) / window.until_ns, 3)
        slower = min(slower, self._contenders.slower())  # the bound must hold for the faster of the two
        models = loaded.models
        bounds = measured.surface.bounds(offered_by(models))
        simulated = None
        if server.name.removesuffix(ADMITTED) in policy_names():
            simulated = measured.surface.simulated(
                server.name, instants, settings.warm_ns, settings.cell_ns
            ).goodput_per_s
        left_rps = None
        if self._contenders.is_measured:
            left_rps = measured.surface.bounds(offered_by(models), loaded.core_part + front_part, slower).fair_rps
        most_rps = waterfall = None
        if server.name == OURS and load in BOUND_LOADS:
            taken = loaded.core_part + front_part if self._contenders.is_measured else 0.0
            fairness = jain([model.in_time / max(model.offered, 1) for model in models])
            setting = Setting(self._contenders.all_units, settings.cell_ns, settings.warm_ns, contention=1.0)
            most_rps = measured.surface.most_rps(
                instants, setting, slower=slower, taken_units=taken, min_fairness=fairness
            )
            if load == WATERFALL_LOAD and arrival == ARRIVALS[0]:
                waterfall = measured.surface.waterfall(
                    instants, setting, slower=slower, taken_units=taken, min_fairness=fairness
                )
        return LoadTrial(
            server.name,
            arrival,
            load,
            models,
            bounds.fair_rps,
            bounds.greedy_rps,
            simulated,
            loaded.core_part,
            front_part,
            slower,
            left_rps,
            most_rps,
            waterfall,
        )


def without(instants: Sequence[Duration], begin_ns: Duration, end_ns: Duration) -> tuple[Duration, ...]:
    """Return the instants that are not in this period."""
    return tuple(instant for instant in instants if not begin_ns <= instant < end_ns)


def _report(
    contenders: Contenders,
    measured: _ModelMeasurements,
    slo_times: float,
    rounds: int,
    names: Sequence[str],
    trials: Sequence[LoadTrial],
) -> GoodputReport:
    cells = cells_of(trials, contenders.default)
    policies = policies_of(cells)
    ours = OURS if OURS in names else names[0]
    our_results = [policy for policy in policies if policy.policy == ours]
    our_cells = [cell for cell in cells if cell.policy == ours]
    vs_bound, vs_bound_bursts = (
        {str(cell.load): cell.vs_bound for cell in our_cells if cell.arrival == arrival and cell.vs_bound is not None}
        for arrival in ARRIVALS
    )
    attained = min(result.slo_attainment_admitted for result in our_results)
    hold = min(result.goodput_hold for result in our_results)
    return GoodputReport(
        runtime=contenders.runtime,
        all_units=contenders.all_units,
        rounds=rounds,
        slo_times=slo_times,
        models=measured.models,
        capacity_rps=measured.capacity_rps,
        capacity_from=measured.capacity_from,
        bound_rps=measured.surface.full_rps(),
        ours=ours,
        default=contenders.default,
        goodput_vs_bound=min(result.goodput_vs_bound for result in our_results),
        goodput_vs_default=min(
            (result.goodput_vs_default for result in our_results if result.goodput_vs_default is not None), default=None
        ),
        slo_attainment_admitted=attained,
        fairness=min(result.fairness for result in our_results),
        goodput_hold=hold,
        goodput_vs_capacity=round(min(result.best_rps for result in our_results) / measured.capacity_rps, 3),
        vs_bound=vs_bound,
        vs_bound_bursts=vs_bound_bursts,
        vs_fluid_bound={
            str(cell.load): cell.goodput_vs_bound if cell.goodput_vs_left_bound is None else cell.goodput_vs_left_bound
            for cell in our_cells
            if cell.arrival == ARRIVALS[0]
        },
        waterfall=waterfall_of([trial for trial in trials if trial.policy == ours]),
        met={
            f"vs_bound >= {BOUND_TARGET}": bool(vs_bound) and min(vs_bound.values()) >= BOUND_TARGET,
            f"slo_attainment_admitted >= {ATTAINED_TARGET}": attained >= ATTAINED_TARGET,
            f"goodput_hold >= {HOLD_TARGET}": hold >= HOLD_TARGET,
        },
        policies=policies,
        cells=cells,
    )
