"""Which services and trainings share a node, and how busy is it before? A day in four steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.domain.instant import MICROSECOND_NS
from cotenant.domain.load import Load, poisson
from cotenant.experiment.fill.pairs import Missing, Pair
from cotenant.experiment.lab.fikit_cases import catalogue, timelines

DAY: Final[dict[float, float]] = {0.10: 0.35, 0.25: 0.30, 0.40: 0.20, 0.60: 0.15}
"""Of the device's time, what a service asks for, and for which part of the day: our choice. The mean is 0.28, where the
paper's cluster was at 0.26."""
REQUESTS: Final = 300
"""Of a case: its p99 is the third largest."""
LONGEST_NS: Final = 2500 * MICROSECOND_NS
"""Device time of a request; services with longer ones need minutes for as many requests at a tenth of the device."""
HOST_MOST: Final = 0.8
"""Of its host's time: a service that needs more to reach a level never reaches it in a steady state."""
BESIDE: Final = 2
"""Trainings beside each service, one at a time."""
_QUICK_STEP: Final = 4


class NodeCase(msgspec.Struct, frozen=True, kw_only=True):
    """A service at one level of the day, beside a training."""

    pair: Pair
    level: float


def node_cases(directory: Path, *, quick: bool) -> tuple[list[NodeCase], list[Missing]]:
    """Every service at every level that it can reach, beside two of the trainings, in turns."""
    pairs, missing = catalogue(directory, quick=quick)
    traced, unfit = timelines(directory, quick=quick)
    offline = list({case.pair.offline.name: case.pair.offline for case in traced}.values())
    online = services([case.pair for case in (*pairs, *traced)])[:: _QUICK_STEP if quick else 1]
    cases = [
        case
        for number, load in enumerate(online)
        for case in _levels(
            load, [offline[(number + one) % len(offline)] for one in range(min(BESIDE, len(offline)))], number + 1
        )
    ]
    return cases, [*missing, *unfit]


def services(pairs: Sequence[Pair]) -> list[Load]:
    """The online loads that serve short requests: one of those with the same kernels and host times, no trainings."""
    found: dict[tuple[object, ...], Load] = {}
    for pair in pairs:
        load = pair.online
        if pair.family != "inflated" and "train" not in load.name and load.device_ns <= LONGEST_NS:
            found.setdefault((load.launches, load.graph), load)
    return list(found.values())


def at_level(load: Load, level: float, seed: int, requests: int = REQUESTS) -> Load | None:
    """As many requests, at random instants, as ask for such a part of the device's time; None: its host cannot."""
    each_ns = load.device_ns
    if level * max(load.host_ns, each_ns) > HOST_MOST * each_ns:
        return None
    return msgspec.structs.replace(load, arrival=poisson(level * 1e9 / each_ns, seed), requests=requests)


def _levels(load: Load, offline: Sequence[Load], seed: int) -> Iterator[NodeCase]:
    for level in DAY:
        online = at_level(load, level, seed)
        if online is not None:
            for below in offline:
                pair = Pair(f"{load.name} + {below.name}", "poisson", online, below)
                yield NodeCase(pair=pair, level=level)
