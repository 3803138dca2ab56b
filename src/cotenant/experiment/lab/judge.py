"""How far is what was foretold from what was measured? Errors, halves, and cases beyond explaining."""

from __future__ import annotations

import random
import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

BEYOND: Final = 0.5
"""A relative error above this is listed by name as not explained."""

Case = TypeVar("Case", bound=Hashable)


class Errors(msgspec.Struct, frozen=True, kw_only=True):
    """Relative errors |foretold / measured - 1| in short."""

    n: int
    median: float
    p90: float
    worst: float
    worst_case: str


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """One way to halve the cells, and the errors on the half that was held out."""

    by: str
    seed: int
    median: float
    p90: float


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """The same judgement under several splits of one kind."""

    by: str
    seeds: int
    median_of_medians: float
    least_median: float
    largest_median: float


class Unexplained(msgspec.Struct, frozen=True, kw_only=True):
    """A case the model misses by more than `BEYOND`, and what can be checked about its measurement."""

    check: str
    case: str
    error: float
    foretold_ms: float
    measured_ms: float
    reason: str


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the judgement; no target: nothing was asked for but the figure."""

    name: str
    errors: Errors
    target: float | None
    met: bool | None
    baselines: dict[str, Errors]


def relative(foretold: float, measured: float) -> float:
    """The relative error."""
    return abs(foretold / measured - 1)


def errors_of(errors: Mapping[str, float]) -> Errors:
    """In short; ties for the worst go to the first by name."""
    if not errors:
        raise ValueError("nothing was held out")
    values = sorted(errors.values())
    worst = max(values)
    return Errors(
        n=len(values),
        median=_rounded(statistics.median(values)),
        p90=_rounded(_quantile(values, 0.9)),
        worst=_rounded(worst),
        worst_case=min(name for name, error in errors.items() if error == worst),
    )


def halves(cases: Sequence[Case], seed: int) -> tuple[list[Case], list[Case]]:
    """Half to fit and half to hold out, as the seed shuffles them; a case too many is held out."""
    shuffled = sorted(cases, key=repr)
    random.Random(seed).shuffle(shuffled)
    return shuffled[: len(shuffled) // 2], shuffled[len(shuffled) // 2 :]


def spread_of(splits: Sequence[Split]) -> list[Spread]:
    """By kind of split, in the order they come."""
    kinds = list(dict.fromkeys(split.by for split in splits))
    found = []
    for kind in kinds:
        medians = [split.median for split in splits if split.by == kind]
        found.append(
            Spread(
                by=kind,
                seeds=len(medians),
                median_of_medians=_rounded(statistics.median(medians)),
                least_median=min(medians),
                largest_median=max(medians),
            )
        )
    return found


def _quantile(ordered: Sequence[float], part: float) -> float:
    """Between the two nearest ranks, in proportion."""
    place = part * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _rounded(value: float) -> float:
    """A millionth is more than any measurement here has to say."""
    return round(value, 6)
