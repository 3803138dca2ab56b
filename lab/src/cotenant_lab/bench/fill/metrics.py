"""Compute the metrics of a pair as medians of ratios within a round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from cotenant.harness.run import Mode, SharingRun

Round: TypeAlias = Mapping[Mode, SharingRun]

SHARED: Final[tuple[Mode, ...]] = ("slices", "mps", "mps priorities", "cotenant slices", "cotenant mps")
COTENANT: Final[dict[str, Mode]] = {"slices": "cotenant slices", "mps": "cotenant mps"}
DEFAULT: Final[dict[str, Mode]] = {"slices": "slices", "mps": "mps"}


class RepetitionSpread(msgspec.Struct, frozen=True, kw_only=True):
    """Spread of the online completion time over repetitions."""

    max_over_min: float
    """Minus one: 0 if all repetitions took the same time."""
    variation: float
    """Standard deviation over mean."""


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """Range of a metric over all pairs."""

    min: float
    median: float
    max: float


class PairMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of one pair, by mode or by the default sharing ("slices", "mps") that cotenant is compared with."""

    name: str
    family: str
    rounds: int
    online_alone_ms: float
    online_delay_ratio: dict[str, float]
    """By mode: device time that online kernels waited because of another tenant, over the completion time alone."""
    online_speedup_vs_sharing: dict[str, float]
    online_slowdown: dict[str, float]
    """By mode: completion time over the completion time alone; 1 means no slowdown."""
    offline_ratio_vs_sharing: dict[str, float]
    """Offline kernel time until the slower of the two online runs ends; after the faster it runs alone."""
    offline_rate_vs_sharing: dict[str, float]
    """Offline kernel time per second while the online program runs, cotenant over default sharing."""
    offline_vs_alone: dict[str, float]
    """By mode: offline kernel time per second while the online program runs, over that alone."""
    overhead_pct: float | None
    """Of the online completion time alone, with cotenant's hook over without it."""
    overhead_pct_p50: float | None
    """Of the median latency, which single requests that the machine delays do not change."""
    overhead_pct_unsampled: float | None
    """The same without timing one launch in 64, for which the software GPU needs an extra query."""
    spread: dict[str, RepetitionSpread]
    latency_p50_ms: dict[str, float]
    latency_p99_ms: dict[str, float]
    busy: dict[str, float]
    """By mode: the fraction of time during which the device was busy."""
    failed: list[str]


def pair_metrics(name: str, family: str, rounds: Sequence[Round], failed: Sequence[str] = ()) -> PairMetrics:
    """Compute the metrics of a pair from its rounds; metrics that need a failed run are omitted."""

    def by_mode(value: Callable[[Round, Mode], float], modes: Iterable[Mode] = SHARED) -> dict[str, float]:
        medians_by_mode = {mode: _median(value, rounds, mode) for mode in modes}
        return {mode: middle for mode, middle in medians_by_mode.items() if middle is not None}

    def against(value: Callable[[SharingRun, SharingRun, Round], float]) -> dict[str, float]:
        medians_by_mode = {}
        for sharing, mode in COTENANT.items():
            values = [
                value(runs[mode], runs[DEFAULT[sharing]], runs)
                for runs in rounds
                if mode in runs and DEFAULT[sharing] in runs and "offline alone" in runs
            ]
            if values:
                medians_by_mode[sharing] = statistics.median(values)
        return medians_by_mode

    every: tuple[Mode, ...] = ("alone", "through", "unsampled", *SHARED)
    overheads = by_mode(
        lambda runs, mode: runs[mode].latency_sum_ns / runs["alone"].latency_sum_ns, ["through", "unsampled"]
    )
    medians = by_mode(lambda runs, mode: runs[mode].latency_p50_ns / max(runs["alone"].latency_p50_ns, 1), ["through"])
    return PairMetrics(
        name=name,
        family=family,
        rounds=len(rounds),
        online_alone_ms=_alone_ms(rounds),
        online_delay_ratio=by_mode(lambda runs, mode: runs[mode].online_delayed_ns / runs["alone"].latency_sum_ns),
        online_speedup_vs_sharing=against(lambda ours, theirs, _: theirs.latency_sum_ns / ours.latency_sum_ns),
        online_slowdown=by_mode(lambda runs, mode: runs[mode].latency_sum_ns / runs["alone"].latency_sum_ns),
        offline_ratio_vs_sharing=against(
            lambda ours, theirs, runs: same_window_ratio(ours, theirs, offline_rate(runs["offline alone"]))
        ),
        offline_rate_vs_sharing=against(lambda ours, theirs, _: offline_rate(ours) / max(offline_rate(theirs), 1e-9)),
        offline_vs_alone=by_mode(lambda runs, mode: offline_rate(runs[mode]) / offline_rate(runs["offline alone"])),
        overhead_pct=_percent_over(overheads.get("through")),
        overhead_pct_p50=_percent_over(medians.get("through")),
        overhead_pct_unsampled=_percent_over(overheads.get("unsampled")),
        spread={mode: spread_of(times) for mode in every if (times := _times(rounds, mode))},
        latency_p50_ms=by_mode(lambda runs, mode: runs[mode].latency_p50_ns / 1e6, every),
        latency_p99_ms=by_mode(lambda runs, mode: runs[mode].latency_p99_ns / 1e6, every),
        busy=by_mode(lambda runs, mode: runs[mode].busy_ns / runs[mode].wall_ns, every),
        failed=list(failed),
    )


def offline_rate(run: SharingRun) -> float:
    """Return offline kernel time done per unit of time."""
    return run.offline_done_ns / run.wall_ns


def same_window_ratio(ours: SharingRun, theirs: SharingRun, alone_rate: float) -> float:
    """Return the ratio of offline work done until the slower run ends; after the faster run it continues alone."""
    window_ns = max(ours.wall_ns, theirs.wall_ns)

    def done_ns(run: SharingRun) -> float:
        return run.offline_done_ns + alone_rate * (window_ns - run.wall_ns)

    return done_ns(ours) / max(done_ns(theirs), 1.0)


def spread_of(times: Sequence[float]) -> RepetitionSpread:
    """Return how much equal runs differ."""
    mean = statistics.fmean(times)
    return RepetitionSpread(max_over_min=max(times) / min(times) - 1, variation=statistics.pstdev(times) / mean)


def ranges_of(pairs: Sequence[PairMetrics]) -> dict[str, Range]:
    """Return the range of each metric over all pairs."""
    ranges: dict[str, Range] = {}
    for sharing, mode in COTENANT.items():
        columns: dict[str, list[float | None]] = {
            "online_delay_ratio": [pair.online_delay_ratio.get(mode) for pair in pairs],
            "online_speedup_vs_sharing": [pair.online_speedup_vs_sharing.get(sharing) for pair in pairs],
            "online_slowdown": [pair.online_slowdown.get(mode) for pair in pairs],
            "offline_ratio_vs_sharing": [pair.offline_ratio_vs_sharing.get(sharing) for pair in pairs],
            "offline_rate_vs_sharing": [pair.offline_rate_vs_sharing.get(sharing) for pair in pairs],
            "offline_vs_alone": [pair.offline_vs_alone.get(mode) for pair in pairs],
            "spread": [pair.spread[mode].max_over_min if mode in pair.spread else None for pair in pairs],
        }
        for metric, values in columns.items():
            if (range_ := range_of(values)) is not None:
                ranges[f"{metric}_{sharing}"] = range_
    overheads = {
        "overhead_pct": range_of(pair.overhead_pct for pair in pairs),
        "overhead_pct_p50": range_of(pair.overhead_pct_p50 for pair in pairs),
        "overhead_pct_unsampled": range_of(pair.overhead_pct_unsampled for pair in pairs),
    }
    return ranges | {name: range_ for name, range_ in overheads.items() if range_ is not None}


def range_of(values: Iterable[float | None]) -> Range | None:
    """Return minimum, median and maximum of the known values, or None without any."""
    known = [value for value in values if value is not None]
    return Range(min=min(known), median=statistics.median(known), max=max(known)) if known else None


def _percent_over(ratio: float | None) -> float | None:
    return None if ratio is None else 100 * (ratio - 1)


def _times(rounds: Sequence[Round], mode: Mode) -> list[float]:
    return [float(runs[mode].latency_sum_ns) for runs in rounds if mode in runs]


def _alone_ms(rounds: Sequence[Round]) -> float:
    times = _times(rounds, "alone")
    return statistics.median(times) / 1e6 if times else 0.0


def _median(value: Callable[[Round, Mode], float], rounds: Sequence[Round], mode: Mode) -> float | None:
    values = [value(runs, mode) for runs in rounds if mode in runs and "alone" in runs and "offline alone" in runs]
    return statistics.median(values) if values else None
