"""Evaluate the predicted load of the next window with published arrivals and with synthetic diurnal load."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from cotenant.predict.calibration import Calibration, CalibrationRules
from cotenant.predict.diurnal_profile import DAY_NS
from cotenant.predict.load import Load
from cotenant_lab.study.predictor.comparison import COVERED

WINDOWS_S: Final = (1, 10, 60)
_SECOND_NS: Final = 1_000_000_000
_DAYS: Final = 4
_DAY_WINDOW_S: Final = 300
_DAY_REQUESTS: Final = 400
WIDTHS_ONLY: Final = CalibrationRules(max_shift=0.0, step=0.1)
"""Means of counts are unbiased; only the error is learned."""
SYNTHETIC: Final = "synthetic diurnal load"


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """One trace in windows of one length; errors are relative to the mean load. The first half is for learning."""

    trace: str
    window_s: int
    windows: int
    mean_requests: float
    mean_error: float
    constant_error: float
    """Error of the mean of the first half."""
    last_error: float
    """Error of predicting the last window."""
    coverage: float
    """Of the calibrated intervals."""
    raw_coverage: float
    met: dict[str, bool]


class Window(msgspec.Struct, frozen=True):
    """For plots: requests that arrived, and the prediction."""

    requests: int
    low: float
    point: float
    high: float


def evaluate_loads(
    arrivals: Mapping[str, Sequence[int]], seed: int, *, quick: bool
) -> tuple[list[LoadResult], dict[str, list[Window]]]:
    """Evaluate every trace in every window length that gives enough windows."""
    results, windows_by_name = [], {}
    for name, instants_ns in arrivals.items():
        for window_s in WINDOWS_S[1 if quick else 0 :]:
            counts, begin_ns = windows_of(instants_ns, window_s)
            if len(counts) >= 40:
                result, windows = _evaluate(name, counts, begin_ns, window_s)
                results.append(result)
                windows_by_name[f"{name}, {window_s} s"] = windows
    counts = synthetic_days(seed)
    result, windows = _evaluate(SYNTHETIC, counts, 0, _DAY_WINDOW_S)
    results.append(result)
    windows_by_name[SYNTHETIC] = windows
    return results, windows_by_name


def windows_of(instants_ns: Sequence[int], window_s: int) -> tuple[list[int], int]:
    """Return the requests in each whole window from the first request on, and the start of the first window."""
    begin_ns, length_ns = instants_ns[0], window_s * _SECOND_NS
    counts = [0] * ((instants_ns[-1] - begin_ns) // length_ns)
    for instant in instants_ns:
        index = (instant - begin_ns) // length_ns
        if index < len(counts):
            counts[index] += 1
    return counts, begin_ns


def synthetic_days(seed: int) -> list[int]:
    """Return synthetic requests in windows with a diurnal profile, with more noise than Poisson arrivals."""
    rng = random.Random(seed)
    steps = DAY_NS // _SECOND_NS // _DAY_WINDOW_S
    counts = []
    for index in range(_DAYS * steps):
        phase = 2 * math.pi * (index % steps) / steps
        busy = 1 + 0.7 * math.sin(phase) + (1.0 if 0.55 < (index % steps) / steps < 0.6 else 0.0)
        counts.append(max(0, round(rng.gauss(_DAY_REQUESTS * busy, 2 * math.sqrt(_DAY_REQUESTS * busy)))))
    return counts


def _evaluate(name: str, counts: Sequence[int], begin_ns: int, window_s: int) -> tuple[LoadResult, list[Window]]:
    load, calibration = Load(), Calibration()
    half = len(counts) // 2
    constant = statistics.fmean(counts[:half])
    windows, held_raw = [], 0
    for index, requests in enumerate(counts):
        at_ns = begin_ns + index * window_s * _SECOND_NS
        raw = load.next_window(at_ns)
        if raw is not None:
            predicted = calibration.corrected(raw)
            if index >= half:
                windows.append(Window(requests, predicted.low, predicted.point, predicted.high))
                held_raw += raw.holds(requests)
            calibration = calibration.after(raw, requests, WIDTHS_ONLY)
        load = load.after(requests, at_ns)
    mean = max(statistics.fmean(counts[half:]), 1e-9)
    mean_error = statistics.fmean(abs(window.point - window.requests) for window in windows) / mean
    constant_error = statistics.fmean(abs(constant - window.requests) for window in windows) / mean
    last_error = (
        statistics.fmean(abs(counts[half + position - 1] - window.requests) for position, window in enumerate(windows))
        / mean
    )
    coverage = sum(window.low <= window.requests <= window.high for window in windows) / len(windows)
    met = {
        "better than a constant": mean_error < constant_error,
        "better than the last window": mean_error < last_error,
        "intervals hold": COVERED[0] <= coverage <= COVERED[1],
    }
    result = LoadResult(
        trace=name,
        window_s=window_s,
        windows=len(windows),
        mean_requests=round(mean, 3),
        mean_error=round(mean_error, 4),
        constant_error=round(constant_error, 4),
        last_error=round(last_error, 4),
        coverage=round(coverage, 4),
        raw_coverage=round(held_raw / len(windows), 4),
        met=met,
    )
    return result, windows
