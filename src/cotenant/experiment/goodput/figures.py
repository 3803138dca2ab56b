"""What do the loads of one round say of a contender, and several rounds together? Counts and ratios, nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from cotenant.domain.goodput import Goodput
from cotenant.experiment.serve.fairness import jain

OVERLOAD: Final = 1.3
"""Of the capacity: from here on it is more than a server can answer, whatever the instants."""


class Tried(msgspec.Struct, frozen=True):
    """One contender under one load in one round."""

    policy: str
    arrival: str
    load: float
    """Of the capacity."""
    models: tuple[Goodput, ...]
    bound_rps: float
    """What nobody can exceed who answers the same part of every model's requests, of those that were really offered."""
    greedy_bound_rps: float
    """What nobody can exceed, also not by answering only the cheapest."""
    simulated_rps: float | None
    """What the same policy has answered in time where runs take what was measured; None: it is not simulated."""
    core_part: float
    """Of one core, what sending took."""
    front_part: float = 0.0
    """Of one core, what the server's front end took."""
    slower: float = 1.0
    """How many times as long runs took right before as when they were profiled."""
    left_bound_rps: float | None = None
    """As `bound_rps`, on what both left of the cores, at the speed these had; None: runs have another device."""

    @property
    def goodput_rps(self) -> float:
        """Of all models."""
        return sum(one.goodput_rps for one in self.models)


class GoodputCell(msgspec.Struct, frozen=True):
    """One contender under one load; rates and ratios are medians over the rounds, counts are sums."""

    policy: str
    arrival: str
    load: float
    offered_rps: float
    goodput_rps: float
    goodput_vs_bound: float
    """The bound answers the same part of every model's requests; who prefers cheap ones may come out above 1."""
    goodput_vs_greedy_bound: float
    """Over the most that anybody can have answered, of whichever models."""
    goodput_vs_default: float
    """Over the default's in the same round, which is taken for no less than one request."""
    slo_attainment_admitted: float
    """Of the requests that were not refused in time, the part that was answered in time."""
    fairness: float
    """Jain's index of the parts of their requests that models had answered in time: 1, all alike; 1/n, only one."""
    simulated_rps: float | None
    """In time under the same policy and instants, where runs take what was measured and nothing else takes time."""
    offered: int
    in_time: int
    late: int
    """Answered, but after the objective."""
    refused: int
    refused_late: int
    failed: int
    given_up: int
    late_sends: int
    send_lag_p99_us: float
    send_core_part: float
    """Of one core, what sending took: that much less was left for the server."""
    front_core_part: float
    """Of one core, what taking requests in and answering them took: that much less was left for the runs."""
    slower: float
    """How many times as long runs took right before as when they were profiled: machines do not keep their speed."""
    goodput_vs_left_bound: float | None
    """Over the bound on what sending and the front end left of the cores, at that speed; None: runs are not there."""
    p99_ms: float
    """Of the answers of the model that has the longest."""
    goodput_by_model: dict[str, float]


class GoodputOfPolicy(msgspec.Struct, frozen=True):
    """One contender under one kind of arrivals, over all loads: the least of each."""

    policy: str
    arrival: str
    best_rps: float
    goodput_hold: float
    """At the highest load, over the best at any."""
    goodput_vs_bound: float
    goodput_vs_greedy_bound: float
    goodput_vs_default: float | None
    """From 1.3 of the capacity on; None where no load was as high."""
    slo_attainment_admitted: float
    fairness: float


def summed(tries: Sequence[Tried], defaults: Sequence[Tried]) -> GoodputCell:
    """The rounds of one contender under one load, each with the default's of the same round."""
    models = [one for tried in tries for one in tried.models]
    in_time = sum(one.in_time for one in models)
    admitted = sum(one.admitted for one in models)
    names = [one.model for one in tries[0].models]
    by_model = {name: [one for one in models if one.model == name] for name in names}
    return GoodputCell(
        policy=tries[0].policy,
        arrival=tries[0].arrival,
        load=tries[0].load,
        offered_rps=_middle([sum(one.offered_rps for one in tried.models) for tried in tries]),
        goodput_rps=_middle([tried.goodput_rps for tried in tries]),
        goodput_vs_bound=_ratio([(tried.goodput_rps, tried.bound_rps) for tried in tries]),
        goodput_vs_greedy_bound=_ratio([(tried.goodput_rps, tried.greedy_bound_rps) for tried in tries]),
        goodput_vs_default=_ratio(
            [
                (mine.goodput_rps, max(theirs.goodput_rps, _one(theirs)))
                for mine, theirs in zip(tries, defaults, strict=True)
            ]
        ),
        slo_attainment_admitted=round(in_time / admitted, 4) if admitted else 1.0,
        fairness=round(jain([_part(by_model[name]) for name in names]), 4),
        simulated_rps=_middle_of([tried.simulated_rps for tried in tries]),
        offered=sum(one.offered for one in models),
        in_time=in_time,
        late=sum(one.answered - one.in_time for one in models),
        refused=sum(one.refused for one in models),
        refused_late=sum(one.refused_late for one in models),
        failed=sum(one.failed for one in models),
        given_up=sum(one.expired + one.unsent for one in models),
        late_sends=sum(one.late_sends for one in models),
        send_lag_p99_us=_middle([max(one.send_lag_p99_us for one in tried.models) for tried in tries]),
        send_core_part=_middle([tried.core_part for tried in tries]),
        front_core_part=_middle([tried.front_part for tried in tries]),
        slower=_middle([tried.slower for tried in tries]),
        goodput_vs_left_bound=_middle_of(
            [tried.goodput_rps / tried.left_bound_rps if tried.left_bound_rps else None for tried in tries]
        ),
        p99_ms=_middle([max(one.p99_ms for one in tried.models) for tried in tries]),
        goodput_by_model={name: _middle([one.goodput_rps for one in by_model[name]]) for name in names},
    )


def over_loads(cells: Sequence[GoodputCell]) -> GoodputOfPolicy:
    """One contender under one kind of arrivals."""
    best_rps = max(one.goodput_rps for one in cells)
    highest = max(cells, key=lambda one: one.load)
    return GoodputOfPolicy(
        policy=highest.policy,
        arrival=highest.arrival,
        best_rps=best_rps,
        goodput_hold=round(highest.goodput_rps / best_rps, 3) if best_rps else 0.0,
        goodput_vs_bound=min(one.goodput_vs_bound for one in cells),
        goodput_vs_greedy_bound=min(one.goodput_vs_greedy_bound for one in cells),
        goodput_vs_default=min((one.goodput_vs_default for one in cells if one.load >= OVERLOAD), default=None),
        slo_attainment_admitted=min(one.slo_attainment_admitted for one in cells),
        fairness=min(one.fairness for one in cells),
    )


def cells_of(tries: Sequence[Tried], default: str) -> list[GoodputCell]:
    """By load, in the order in which contenders took part."""
    grouped: dict[tuple[str, float, str], list[Tried]] = {}
    for one in tries:
        grouped.setdefault((one.arrival, one.load, one.policy), []).append(one)
    return [summed(some, grouped[arrival, load, default]) for (arrival, load, _), some in grouped.items()]


def policies_of(cells: Sequence[GoodputCell]) -> list[GoodputOfPolicy]:
    """Over all loads."""
    grouped: dict[tuple[str, str], list[GoodputCell]] = {}
    for one in cells:
        grouped.setdefault((one.arrival, one.policy), []).append(one)
    return [over_loads(some) for some in grouped.values()]


def offered_by(models: Sequence[Goodput]) -> Mapping[str, float]:
    """What each model was really asked for."""
    return {one.model: one.offered_rps for one in models}


def _part(rounds: Sequence[Goodput]) -> float:
    offered = sum(one.offered for one in rounds)
    return sum(one.in_time for one in rounds) / offered if offered else 1.0


def _one(tried: Tried) -> float:
    return 1 / max(tried.models[0].seconds, 1e-9)


def _middle(numbers: Sequence[float]) -> float:
    return round(statistics.median(numbers), 3)


def _middle_of(numbers: Sequence[float | None]) -> float | None:
    found = [one for one in numbers if one is not None]
    return _middle(found) if found else None


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return round(statistics.median(mine / other if other else 0.0 for mine, other in pairs), 3)
