"""What does the lab of placement find, and which of its targets are met?"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from cotenant.experiment.lab.caps import Caps
from cotenant.experiment.lab.placement import Judged


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found, and which targets (ours) are met."""

    seed: int
    quick: bool
    judged: list[Judged]
    caps: Caps
    met: dict[str, bool]


def report_of(judged: Sequence[Judged], caps: Caps, seed: int, *, quick: bool) -> Report:
    """Prediction is to get no less done than either of the others, and to break no more objectives."""
    met = {}
    for one in judged:
        predicted = one.policies["predict"]
        for rival in ("spread", "pack"):
            other = one.policies[rival]
            name = f"{one.name} ({one.source}): no worse than {rival}"
            met[name] = _is_no_worse(predicted.by_mix, other.by_mix) and predicted.broken <= other.broken
    return Report(seed=seed, quick=quick, judged=list(judged), caps=caps, met=met)


def _is_no_worse(one: Sequence[float], other: Sequence[float]) -> bool:
    """By no more than two standard errors of the difference, which is taken mix by mix."""
    differences = [first - second for first, second in zip(one, other, strict=True)]
    error = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
    return statistics.fmean(differences) >= -2 * error
