"""Cases: services and trainings that share a node, and the load of a day in four levels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.units.instant import MICROSECOND_NS
from cotenant.workload.load import Workload, poisson
from cotenant_lab.bench.fill.pairs import MissingPair, Pair
from cotenant_lab.study.fikit.cases import catalogue, timelines

DAY: Final[dict[float, float]] = {0.10: 0.35, 0.25: 0.30, 0.40: 0.20, 0.60: 0.15}
"""Fraction of device time that a service requests, and of the day for which it does: our choice. The mean is 0.28; the
paper's cluster had 0.26."""
REQUESTS: Final = 300
"""Requests of a case: its p99 is the third largest."""
LONGEST_NS: Final = 2500 * MICROSECOND_NS
"""Device time of a request; services with longer requests need minutes for as many requests at 10 % load."""
HOST_MOST: Final = 0.8
"""Fraction of its host's time: a service that needs more to reach a level never reaches it in a steady state."""
TRAININGS_PER_SERVICE: Final = 2
"""Trainings for each service, one at a time."""
_QUICK_STEP: Final = 4


class NodeCase(msgspec.Struct, frozen=True, kw_only=True):
    """A service at one level of the day, with a training."""

    pair: Pair
    level: float


def node_cases(directory: Path, *, quick: bool) -> tuple[list[NodeCase], list[MissingPair]]:
    """Return every service at every level that it can reach, with two of the trainings in turn."""
    pairs, missing = catalogue(directory, quick=quick)
    traced, unfit = timelines(directory, quick=quick)
    offline = list({case.pair.offline.name: case.pair.offline for case in traced}.values())
    online = services([case.pair for case in (*pairs, *traced)])[:: _QUICK_STEP if quick else 1]
    cases = [
        case
        for number, load in enumerate(online)
        for case in _levels(
            load,
            [offline[(number + offset) % len(offline)] for offset in range(min(TRAININGS_PER_SERVICE, len(offline)))],
            number + 1,
        )
    ]
    return cases, [*missing, *unfit]


def services(pairs: Sequence[Pair]) -> list[Workload]:
    """Return the online loads with short requests, one of those with equal kernels and host times, and no trainings."""
    distinct: dict[tuple[object, ...], Workload] = {}
    for pair in pairs:
        load = pair.online
        if pair.family != "inflated" and "train" not in load.name and load.device_ns <= LONGEST_NS:
            distinct.setdefault((load.launches, load.graph), load)
    return list(distinct.values())


def at_level(load: Workload, level: float, seed: int, requests: int = REQUESTS) -> Workload | None:
    """Return Poisson arrivals that request this fraction of device time; None if the host cannot."""
    each_ns = load.device_ns
    if level * max(load.host_ns, each_ns) > HOST_MOST * each_ns:
        return None
    return msgspec.structs.replace(load, arrival=poisson(level * 1e9 / each_ns, seed), requests=requests)


def _levels(load: Workload, offline: Sequence[Workload], seed: int) -> Iterator[NodeCase]:
    for level in DAY:
        online = at_level(load, level, seed)
        if online is not None:
            for training in offline:
                pair = Pair(f"{load.name} + {training.name}", "poisson", online, training)
                yield NodeCase(pair=pair, level=level)
