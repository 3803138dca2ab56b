"""Predict latencies of pairs with split SM shares from half of the pairs, and compare with the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from cotenant.softgpu.costs import hardware
from cotenant.softgpu.sim.device import DeviceConfig
from cotenant_lab.data.igniter import Alone, Program, SplitPair
from cotenant_lab.physics import split
from cotenant_lab.study.error import (
    BEYOND,
    ErrorCheck,
    ErrorSummary,
    HalfErrors,
    UnexplainedCase,
    errors_of,
    half_errors,
    halves,
    relative,
)

CHECK: Final = "pairs with split shares"
TARGET: Final = 0.15
_MIN_SHARES: Final = 3
"""Shares alone that determine a program."""


class PairMeasurements(msgspec.Struct, frozen=True, kw_only=True):
    """Programs alone by share, and pairs."""

    alone: dict[Program, dict[int, Alone]]
    pairs: list[SplitPair]


class SplitPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """The fitted contention, and latencies in ms by case: of the known pairs, and of the held-out ones."""

    cache_contention_ppm: int
    dram_contention_ppm: int
    fitted: dict[str, float]
    predicted: dict[str, float]
    shipped: dict[str, float]
    """Held-out pairs with the contention of the `hardware` costs."""
    measured: dict[str, float]
    alone: dict[str, float]
    left_out: int


def predict(measured: PairMeasurements, seed: int, progress: Callable[[str, int, int], None]) -> SplitPrediction:
    """Fit the contention to half of the pairs and predict the others."""
    shipped = hardware("v100")
    programs = {
        program: split.fit_program(by_share, shipped)
        for program, by_share in measured.alone.items()
        if len(by_share) >= _MIN_SHARES
    }
    usable = [pair for pair in measured.pairs if pair.first in programs and pair.second in programs]
    by_name = {_pair_name(pair): pair for pair in usable}
    known_names, held_names = halves(list(by_name), seed)
    known, held = [by_name[name] for name in known_names], [by_name[name] for name in held_names]
    progress(CHECK, 0, 2)
    none = msgspec.structs.replace(shipped, cache_contention_ppm=0, dram_contention_ppm=0)
    config = split.fit_contention(known, programs, none)
    progress(CHECK, 1, 2)
    prediction = SplitPrediction(
        cache_contention_ppm=config.cache_contention_ppm,
        dram_contention_ppm=config.dram_contention_ppm,
        fitted=_latencies(known, programs, config),
        predicted=_latencies(held, programs, config),
        shipped=_latencies(held, programs, shipped),
        measured={
            case: value
            for pair in usable
            for case, value in zip(_cases(pair), (pair.first_ms, pair.second_ms), strict=True)
        },
        alone={
            case: value
            for pair in held
            for case, value in zip(_cases(pair), split.alone_ms(pair, programs, shipped), strict=True)
        },
        left_out=len(measured.pairs) - len(usable),
    )
    progress(CHECK, 2, 2)
    return prediction


def evaluate(outcome: SplitPrediction) -> ErrorCheck:
    """Return errors on the held-out pairs, with those of simpler predictors."""
    errors = _errors(outcome.predicted, outcome.measured)
    slower = sorted(outcome.measured[case] / value for case, value in outcome.alone.items())
    middle = slower[len(slower) // 2]
    return ErrorCheck(
        name=CHECK,
        errors=errors,
        target=TARGET,
        met=errors.median <= TARGET,
        baselines={
            "no interference": _errors(outcome.alone, outcome.measured),
            "contention of the hardware costs": _errors(outcome.shipped, outcome.measured),
            f"constant slowdown of {middle:.2f}": _errors(
                {case: middle * value for case, value in outcome.alone.items()}, outcome.measured
            ),
        },
    )


def errors_of_halves(outcome: SplitPrediction) -> HalfErrors:
    """Return the errors of both halves."""
    return half_errors(
        [(value, outcome.measured[case]) for case, value in outcome.predicted.items()],
        [(value, outcome.measured[case]) for case, value in outcome.fitted.items()],
    )


def unexplained(outcome: SplitPrediction) -> list[UnexplainedCase]:
    """Return cases with large errors, the worst first."""
    cases = [
        UnexplainedCase(
            check=CHECK,
            case=case,
            error=round(relative(value, outcome.measured[case]), 6),
            predicted_ms=round(value, 6),
            measured_ms=round(outcome.measured[case], 6),
            reason="no feature of the measured pairs found that the model lacks",
        )
        for case, value in outcome.predicted.items()
        if relative(value, outcome.measured[case]) > BEYOND
    ]
    return sorted(cases, key=lambda case: (-case.error, case.case))


def _errors(predicted: Mapping[str, float], measured: Mapping[str, float]) -> ErrorSummary:
    return errors_of({case: relative(value, measured[case]) for case, value in predicted.items()})


def _latencies(
    pairs: Sequence[SplitPair], programs: Mapping[Program, split.SplitProgram], config: DeviceConfig
) -> dict[str, float]:
    return {
        case: value
        for pair in pairs
        for case, value in zip(_cases(pair), split.predict_ms(pair, programs, config), strict=True)
    }


def _pair_name(pair: SplitPair) -> str:
    (first, first_batch), (second, second_batch) = pair.first, pair.second
    share = pair.first_share_pct
    return f"{first} batch {first_batch} at {share} % and {second} batch {second_batch} at {100 - share} %"


def _cases(pair: SplitPair) -> tuple[str, str]:
    name = _pair_name(pair)
    return f"{pair.first[0]} of {name}", f"{pair.second[0]} of {name}"
