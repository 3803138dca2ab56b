"""Judge every measured data set with parameters that were fitted without any of its outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from cotenant.predict.speed_parameters import Parameters
from cotenant_lab.study.predictor.fitting import refitted
from cotenant_lab.study.predictor.judging import JudgedSet, judge_cases, judged_set
from cotenant_lab.study.predictor.measured import MeasuredOutcome


def judge_left_out(
    sets: Mapping[str, Sequence[MeasuredOutcome]],
    fitted_to: Sequence[MeasuredOutcome],
    parameters: Parameters,
    *,
    as_slowdown: bool,
) -> list[JudgedSet]:
    """Judge each set by all of its outcomes; what measurements determine is fitted to outcomes of other origins.

    The constant is the median of the other origins in the same mode.
    """
    judged = []
    for name, outcomes in sets.items():
        own = {origin_of(outcome) for outcome in outcomes}
        others = [outcome for outcome in fitted_to if origin_of(outcome) not in own]
        without = refitted(parameters, others)
        held = [msgspec.structs.replace(outcome, is_fit=False, is_held=True) for outcome in outcomes]
        rest = [
            msgspec.structs.replace(outcome, is_fit=True, is_held=False)
            for outcome in others
            if outcome.mode == held[0].mode
        ]
        judged.append(judged_set(name, judge_cases([*held, *rest], without, as_slowdown=as_slowdown)))
    return judged


def origin_of(outcome: MeasuredOutcome) -> str:
    """Return the publication, and of Gavel's the GPU: what was measured together."""
    publication = outcome.source.partition(":")[0]
    return f"{publication} {gpu_of(outcome)}" if outcome.mode == "time" else publication


def gpu_of(outcome: MeasuredOutcome) -> str:
    """Return the first word of an outcome's name, the GPU of Gavel's pairs."""
    return outcome.name.partition(" ")[0]
