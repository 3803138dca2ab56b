"""At which instants do requests come? Drawn once, so that every way of sharing is given the same ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import msgspec

from cotenant.domain.instant import SECOND_NS
from cotenant.domain.load import Arrival, Load, listed
from cotenant.domain.rhythm import Bursts, Rhythm, Steps


def arrivals_of(rhythm: Rhythm, for_ns: int, seed: int) -> Arrival:
    """Requests of an open loop over so long a time; a function of its arguments alone."""
    return listed(instants_of(rhythm, for_ns, seed))


def driven(load: Load, arrival: Arrival) -> Load:
    """The load with a request at each of these instants."""
    return msgspec.structs.replace(load, arrival=arrival, requests=len(arrival.instants_ns))


def instants_of(rhythm: Rhythm, for_ns: int, seed: int) -> tuple[int, ...]:
    """All of them at once."""
    return tuple(coming(rhythm, for_ns, seed))


def coming(rhythm: Rhythm, for_ns: int, seed: int) -> Iterator[int]:
    """One after the other, so that a long load needs no memory for them.

    Candidates at the highest rate, each kept with the chance that its instant's rate has of it.
    """
    chance = random.Random(seed)
    curve = _drawn(rhythm, for_ns, chance) if isinstance(rhythm, Bursts) else rhythm
    most_per_s, at_s, end_s = curve.most_per_s, 0.0, for_ns / SECOND_NS
    if most_per_s <= 0:
        return
    while (at_s := at_s + chance.expovariate(most_per_s)) < end_s:
        at_ns = int(at_s * SECOND_NS)
        if chance.random() * most_per_s < curve.at(at_ns):
            yield at_ns


def evenly(rate_per_s: float, for_ns: int, begin: float = 0.0) -> Iterator[int]:
    """One every so often; the first after this part of the time between two."""
    for number in itertools.count():
        at_ns = int((number + begin) * SECOND_NS / rate_per_s)
        if at_ns >= for_ns:
            return
        yield at_ns


def spread(recorded_ns: Sequence[int], seed: int) -> tuple[int, ...]:
    """Instants of a coarse clock, each moved to anywhere before the clock's next.

    In a recording in steps of seconds everybody comes at once, which nobody did.
    """
    chance, moved, step_ns = random.Random(seed), [], SECOND_NS
    groups = [(at_ns, len(list(some))) for at_ns, some in itertools.groupby(sorted(recorded_ns))]
    for (at_ns, count), following in itertools.zip_longest(groups, groups[1:]):
        if following is not None:
            step_ns = following[0] - at_ns
        moved += sorted(at_ns + int(chance.random() * step_ns) for _ in range(count)) if count > 1 else [at_ns]
    return tuple(moved)


def _drawn(rhythm: Bursts, for_ns: int, chance: random.Random) -> Steps:
    """One course of the two states; it begins in either as likely as it is found in it."""
    is_high = chance.random() * (rhythm.low_ns + rhythm.high_ns) < rhythm.high_ns
    at_ns, rates = 0, []
    while at_ns < for_ns:
        rates.append((at_ns, rhythm.high_per_s if is_high else rhythm.low_per_s))
        at_ns += max(int(chance.expovariate(1 / (rhythm.high_ns if is_high else rhythm.low_ns))), 1)
        is_high = not is_high
    return Steps(tuple(rates))
