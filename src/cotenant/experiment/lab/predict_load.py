"""Is the load of the next window foretold? Published arrivals, and days that are made up to have a time of day."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from cotenant.domain.day import DAY_NS
from cotenant.experiment.lab.foretold import COVERED
from cotenant.policy.predict.calibrate import Calibration, Honesty
from cotenant.policy.predict.load import Load

WINDOWS_S: Final = (1, 10, 60)
_SECOND_NS: Final = 1_000_000_000
_DAYS: Final = 4
_DAY_WINDOW_S: Final = 300
_DAY_REQUESTS: Final = 400
WIDTHS_ONLY: Final = Honesty(most_shift=0.0, step=0.1)
"""Means of counts are right in the mean; only how far off they are is learned."""
MADE_UP: Final = "made-up days"


class LoadJudged(msgspec.Struct, frozen=True, kw_only=True):
    """One trace in windows of one length; errors are of requests, over the mean load. Its first half only teaches."""

    trace: str
    window_s: int
    windows: int
    mean_requests: float
    mean_error: float
    constant_error: float
    """Of the mean of the first half."""
    last_error: float
    """Of the guess that the next window is as the last one."""
    coverage: float
    """Of the intervals as calibrated."""
    raw_coverage: float
    met: dict[str, bool]


class Window(msgspec.Struct, frozen=True):
    """For plots: what came, and what was foretold."""

    requests: int
    low: float
    point: float
    high: float


def judge_loads(
    arrivals: Mapping[str, Sequence[int]], seed: int, *, quick: bool
) -> tuple[list[LoadJudged], dict[str, list[Window]]]:
    """Every trace in every length of window that gives enough of them."""
    found, shown = [], {}
    for name, instants_ns in arrivals.items():
        for window_s in WINDOWS_S[1 if quick else 0 :]:
            counts, begin_ns = windows_of(instants_ns, window_s)
            if len(counts) >= 40:
                one, drawn = _judge(name, counts, begin_ns, window_s)
                found.append(one)
                shown[f"{name}, {window_s} s"] = drawn
    counts = made_up_days(seed)
    one, drawn = _judge(MADE_UP, counts, 0, _DAY_WINDOW_S)
    found.append(one)
    shown[MADE_UP] = drawn
    return found, shown


def windows_of(instants_ns: Sequence[int], window_s: int) -> tuple[list[int], int]:
    """Requests in each whole window from the first request on, and when the first window begins."""
    begin_ns, length_ns = instants_ns[0], window_s * _SECOND_NS
    counts = [0] * ((instants_ns[-1] - begin_ns) // length_ns)
    for instant in instants_ns:
        place = (instant - begin_ns) // length_ns
        if place < len(counts):
            counts[place] += 1
    return counts, begin_ns


def made_up_days(seed: int) -> list[int]:
    """Requests in windows of days that rise and fall, with noise that is wider than that of random arrivals."""
    dice = random.Random(seed)
    steps = DAY_NS // _SECOND_NS // _DAY_WINDOW_S
    counts = []
    for index in range(_DAYS * steps):
        phase = 2 * math.pi * (index % steps) / steps
        busy = 1 + 0.7 * math.sin(phase) + (1.0 if 0.55 < (index % steps) / steps < 0.6 else 0.0)
        counts.append(max(0, round(dice.gauss(_DAY_REQUESTS * busy, 2 * math.sqrt(_DAY_REQUESTS * busy)))))
    return counts


def _judge(name: str, counts: Sequence[int], begin_ns: int, window_s: int) -> tuple[LoadJudged, list[Window]]:
    load, calibration = Load(), Calibration()
    half = len(counts) // 2
    constant = statistics.fmean(counts[:half])
    drawn, held_raw = [], 0
    for index, requests in enumerate(counts):
        at_ns = begin_ns + index * window_s * _SECOND_NS
        raw = load.next_window(at_ns)
        if raw is not None:
            told = calibration.corrected(raw)
            if index >= half:
                drawn.append(Window(requests, told.low, told.point, told.high))
                held_raw += raw.holds(requests)
            calibration = calibration.after(raw, requests, WIDTHS_ONLY)
        load = load.after(requests, at_ns)
    mean = max(statistics.fmean(counts[half:]), 1e-9)
    mean_error = statistics.fmean(abs(one.point - one.requests) for one in drawn) / mean
    constant_error = statistics.fmean(abs(constant - one.requests) for one in drawn) / mean
    last_error = statistics.fmean(abs(counts[half + at - 1] - one.requests) for at, one in enumerate(drawn)) / mean
    coverage = sum(one.low <= one.requests <= one.high for one in drawn) / len(drawn)
    met = {
        "better than a constant": mean_error < constant_error,
        "better than the last window": mean_error < last_error,
        "intervals hold": COVERED[0] <= coverage <= COVERED[1],
    }
    judged = LoadJudged(
        trace=name,
        window_s=window_s,
        windows=len(drawn),
        mean_requests=round(mean, 3),
        mean_error=round(mean_error, 4),
        constant_error=round(constant_error, 4),
        last_error=round(last_error, 4),
        coverage=round(coverage, 4),
        raw_coverage=round(held_raw / len(drawn), 4),
        met=met,
    )
    return judged, drawn
