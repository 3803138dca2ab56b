"""Arrival instants of requests, drawn in advance so that every sharing mode gets the same ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import msgspec

from cotenant.units.instant import SECOND_NS
from cotenant.workload.load import Arrival, Workload, at_instants
from cotenant.workload.rates import BurstRate, RateProcess, StepRate


def draw_arrivals(process: RateProcess, for_ns: int, seed: int) -> Arrival:
    """Draw open-loop arrivals over a period; a function of its arguments only."""
    return at_instants(draw_instants(process, for_ns, seed))


def with_arrivals(load: Workload, arrival: Arrival) -> Workload:
    """Return the workload with a request at each of these instants."""
    return msgspec.structs.replace(load, arrival=arrival, requests=len(arrival.instants_ns))


def draw_instants(process: RateProcess, for_ns: int, seed: int) -> tuple[int, ...]:
    """Return all instants of a period."""
    return tuple(iter_instants(process, for_ns, seed))


def iter_instants(process: RateProcess, for_ns: int, seed: int) -> Iterator[int]:
    """Yield instants one at a time, in constant memory.

    Method: thinning. Candidates are drawn at the peak rate and kept with probability rate / peak.
    """
    rng = random.Random(seed)
    curve = _draw_steps(process, for_ns, rng) if isinstance(process, BurstRate) else process
    peak_per_s, at_s, end_s = curve.peak_per_s, 0.0, for_ns / SECOND_NS
    if peak_per_s <= 0:
        return
    while (at_s := at_s + rng.expovariate(peak_per_s)) < end_s:
        at_ns = int(at_s * SECOND_NS)
        if rng.random() * peak_per_s < curve.at(at_ns):
            yield at_ns


def even_instants(rate_per_s: float, for_ns: int, begin: float = 0.0) -> Iterator[int]:
    """Yield evenly spaced instants; the first one after this fraction of the interval."""
    for number in itertools.count():
        at_ns = int((number + begin) * SECOND_NS / rate_per_s)
        if at_ns >= for_ns:
            return
        yield at_ns


def spread_instants(recorded_ns: Sequence[int], seed: int) -> tuple[int, ...]:
    """Spread instants of a coarse clock at random until the next tick.

    A recording with a resolution of seconds would otherwise have all requests of a second arrive at once.
    """
    rng, spread_ns, step_ns = random.Random(seed), [], SECOND_NS
    groups = [(at_ns, len(list(group))) for at_ns, group in itertools.groupby(sorted(recorded_ns))]
    for (at_ns, count), following in itertools.zip_longest(groups, groups[1:]):
        if following is not None:
            step_ns = following[0] - at_ns
        spread_ns += sorted(at_ns + int(rng.random() * step_ns) for _ in range(count)) if count > 1 else [at_ns]
    return tuple(spread_ns)


def _draw_steps(process: BurstRate, for_ns: int, rng: random.Random) -> StepRate:
    """Draw one path of the two states; the initial state has the stationary distribution."""
    is_high = rng.random() * (process.low_ns + process.high_ns) < process.high_ns
    at_ns, rates = 0, []
    while at_ns < for_ns:
        rates.append((at_ns, process.high_per_s if is_high else process.low_per_s))
        at_ns += max(int(rng.expovariate(1 / (process.high_ns if is_high else process.low_ns))), 1)
        is_high = not is_high
    return StepRate(tuple(rates))
