"""Compute counts and ratios of a contender from its loads and rounds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from cotenant.serve.model.goodput import Goodput
from cotenant_lab.serving.fairness import jain

OVERLOAD: Final = 1.3
"""Fraction of the capacity from which on a server cannot answer all requests, whatever the arrival instants."""


class LoadTrial(msgspec.Struct, frozen=True):
    """One contender under one load in one round."""

    policy: str
    arrival: str
    load: float
    """Fraction of the capacity."""
    models: tuple[Goodput, ...]
    bound_rps: float
    """Upper bound if the same fraction of every model's requests is answered, of those that were really offered."""
    greedy_bound_rps: float
    """Upper bound if only the cheapest requests may be answered."""
    simulated_rps: float | None
    """Goodput of the same policy in simulation with measured run times; None: the contender is not simulated."""
    core_part: float
    """Fraction of one core that sending used."""
    front_part: float = 0.0
    """Fraction of one core that the server's front end used."""
    slower: float = 1.0
    """How many times as long runs took right before or right after, the less of both, as when they were profiled."""
    left_bound_rps: float | None = None
    """As `bound_rps`, for the core time that both did not use, at the measured speed; None: runs use another device."""
    most_rps: float | None = None
    """The most that any schedule answers in time on the core time that both did not use; None: not computed."""
    waterfall: dict[str, float] | None = None
    """Goodput after each part of a server is added to that bound; None: not computed."""

    @property
    def goodput_rps(self) -> float:
        """Return the goodput of all models."""
        return sum(model.goodput_rps for model in self.models)


class GoodputCell(msgspec.Struct, frozen=True):
    """One contender under one load; rates and ratios are medians over the rounds, counts are sums."""

    policy: str
    arrival: str
    load: float
    offered_rps: float
    goodput_rps: float
    goodput_vs_bound: float
    """Over the bound with equal fractions; a policy that prefers cheap models may exceed 1."""
    goodput_vs_greedy_bound: float
    """Over the bound that may answer any models."""
    goodput_vs_default: float
    """Over the default's goodput in the same round, which counts as at least one request."""
    slo_attainment_admitted: float
    """Of the requests that were not refused in time, the fraction that was answered in time."""
    fairness: float
    """Jain's index of the fractions of requests that models had answered in time: 1 if equal, 1/n if only one model."""
    simulated_rps: float | None
    """Simulated goodput of the same policy and instants, with measured run times and no other costs."""
    offered: int
    in_time: int
    late: int
    """Answered after the objective."""
    refused: int
    refused_late: int
    failed: int
    given_up: int
    late_sends: int
    send_lag_p99_us: float
    send_core_part: float
    """Fraction of one core that sending used, which the server could not use."""
    front_core_part: float
    """Fraction of one core that receiving and answering requests used, which runs could not use."""
    slower: float
    """How many times as long runs took right before or right after, the less of both, as when they were profiled."""
    vs_bound: float | None
    """Over the most that any schedule as fair answers in time; None: not computed for this contender and load."""
    goodput_vs_left_bound: float | None
    """Over the bound for the core time that sending and the front end did not use; None: runs use another device."""
    p99_ms: float
    """Of the model with the longest p99."""
    goodput_by_model: dict[str, float]


class PolicyGoodput(msgspec.Struct, frozen=True):
    """One contender under one kind of arrivals: the minimum of each ratio over all loads."""

    policy: str
    arrival: str
    best_rps: float
    goodput_hold: float
    """Goodput at the highest load over the best goodput at any load."""
    goodput_vs_bound: float
    goodput_vs_greedy_bound: float
    goodput_vs_default: float | None
    """At loads of 1.3 times the capacity and more; None if no load was as high."""
    slo_attainment_admitted: float
    fairness: float


def summed(trials: Sequence[LoadTrial], defaults: Sequence[LoadTrial]) -> GoodputCell:
    """Combine the rounds of one contender under one load with the default's of the same rounds."""
    models = [model for trial in trials for model in trial.models]
    in_time = sum(model.in_time for model in models)
    admitted = sum(model.admitted for model in models)
    names = [model.model for model in trials[0].models]
    by_model = {name: [model for model in models if model.model == name] for name in names}
    return GoodputCell(
        policy=trials[0].policy,
        arrival=trials[0].arrival,
        load=trials[0].load,
        offered_rps=_median([sum(model.offered_rps for model in trial.models) for trial in trials]),
        goodput_rps=_median([trial.goodput_rps for trial in trials]),
        goodput_vs_bound=_ratio([(trial.goodput_rps, trial.bound_rps) for trial in trials]),
        goodput_vs_greedy_bound=_ratio([(trial.goodput_rps, trial.greedy_bound_rps) for trial in trials]),
        goodput_vs_default=_ratio(
            [
                (mine.goodput_rps, max(theirs.goodput_rps, _one_request_per_s(theirs)))
                for mine, theirs in zip(trials, defaults, strict=True)
            ]
        ),
        slo_attainment_admitted=round(in_time / admitted, 4) if admitted else 1.0,
        fairness=round(jain([_part(by_model[name]) for name in names]), 4),
        simulated_rps=_median_of([trial.simulated_rps for trial in trials]),
        offered=sum(model.offered for model in models),
        in_time=in_time,
        late=sum(model.answered - model.in_time for model in models),
        refused=sum(model.refused for model in models),
        refused_late=sum(model.refused_late for model in models),
        failed=sum(model.failed for model in models),
        given_up=sum(model.expired + model.unsent for model in models),
        late_sends=sum(model.late_sends for model in models),
        send_lag_p99_us=_median([max(model.send_lag_p99_us for model in trial.models) for trial in trials]),
        send_core_part=_median([trial.core_part for trial in trials]),
        front_core_part=_median([trial.front_part for trial in trials]),
        slower=_median([trial.slower for trial in trials]),
        vs_bound=_median_of([trial.goodput_rps / trial.most_rps if trial.most_rps else None for trial in trials]),
        goodput_vs_left_bound=_median_of(
            [trial.goodput_rps / trial.left_bound_rps if trial.left_bound_rps else None for trial in trials]
        ),
        p99_ms=_median([max(model.p99_ms for model in trial.models) for trial in trials]),
        goodput_by_model={name: _median([model.goodput_rps for model in by_model[name]]) for name in names},
    )


class WaterfallStep(msgspec.Struct, frozen=True):
    """Goodput after one more part of a server, and what that part lost; a negative loss is within the noise."""

    part: str
    goodput_rps: float
    lost_rps: float


def waterfall_of(trials: Sequence[LoadTrial]) -> list[WaterfallStep]:
    """Return the medians over the trials that have a waterfall, from the device to the live server."""
    computed = [trial for trial in trials if trial.waterfall is not None]
    if not computed:
        return []
    falls = [{**(trial.waterfall or {}), "interference between runs": trial.goodput_rps} for trial in computed]
    steps: list[WaterfallStep] = []
    for part in falls[0]:
        rps = _median([fall[part] for fall in falls])
        lost_rps = round(steps[-1].goodput_rps - rps, 3) if steps else 0.0
        steps.append(WaterfallStep(part, rps, lost_rps))
    return steps


def over_loads(cells: Sequence[GoodputCell]) -> PolicyGoodput:
    """Combine the loads of one contender under one kind of arrivals."""
    best_rps = max(cell.goodput_rps for cell in cells)
    highest = max(cells, key=lambda cell: cell.load)
    return PolicyGoodput(
        policy=highest.policy,
        arrival=highest.arrival,
        best_rps=best_rps,
        goodput_hold=round(highest.goodput_rps / best_rps, 3) if best_rps else 0.0,
        goodput_vs_bound=min(cell.goodput_vs_bound for cell in cells),
        goodput_vs_greedy_bound=min(cell.goodput_vs_greedy_bound for cell in cells),
        goodput_vs_default=min((cell.goodput_vs_default for cell in cells if cell.load >= OVERLOAD), default=None),
        slo_attainment_admitted=min(cell.slo_attainment_admitted for cell in cells),
        fairness=min(cell.fairness for cell in cells),
    )


def cells_of(trials: Sequence[LoadTrial], default: str) -> list[GoodputCell]:
    """Group trials by load, in the order in which contenders took part."""
    grouped: dict[tuple[str, float, str], list[LoadTrial]] = {}
    for trial in trials:
        grouped.setdefault((trial.arrival, trial.load, trial.policy), []).append(trial)
    return [summed(group, grouped[arrival, load, default]) for (arrival, load, _), group in grouped.items()]


def policies_of(cells: Sequence[GoodputCell]) -> list[PolicyGoodput]:
    """Group cells by contender and kind of arrivals."""
    grouped: dict[tuple[str, str], list[GoodputCell]] = {}
    for cell in cells:
        grouped.setdefault((cell.arrival, cell.policy), []).append(cell)
    return [over_loads(group) for group in grouped.values()]


def offered_by(models: Sequence[Goodput]) -> Mapping[str, float]:
    """Return the rate at which each model was really requested."""
    return {model.model: model.offered_rps for model in models}


def _part(rounds: Sequence[Goodput]) -> float:
    offered = sum(model.offered for model in rounds)
    return sum(model.in_time for model in rounds) / offered if offered else 1.0


def _one_request_per_s(trial: LoadTrial) -> float:
    return 1 / max(trial.models[0].seconds, 1e-9)


def _median(numbers: Sequence[float]) -> float:
    return round(statistics.median(numbers), 3)


def _median_of(numbers: Sequence[float | None]) -> float | None:
    values = [number for number in numbers if number is not None]
    return _median(values) if values else None


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return round(statistics.median(mine / reference if reference else 0.0 for mine, reference in pairs), 3)
