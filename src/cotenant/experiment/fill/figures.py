"""What do the runs of a pair add up to? Medians of ratios within a round: the machine's mood changes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from cotenant.experiment.fill.scene import Mode, Scene

Round: TypeAlias = Mapping[Mode, Scene]

SHARED: Final[tuple[Mode, ...]] = ("slices", "mps", "cotenant slices", "cotenant mps")
COTENANT: Final[dict[str, Mode]] = {"slices": "cotenant slices", "mps": "cotenant mps"}
DEFAULT: Final[dict[str, Mode]] = {"slices": "slices", "mps": "mps"}


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Of the online completion time over repetitions."""

    max_over_min: float
    """Less one: 0 when all took the same."""
    variation: float
    """Standard deviation over mean."""


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """Of a figure over all pairs."""

    min: float
    median: float
    max: float


class PairFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One pair. By mode, or by the default sharing ("slices", "mps") that cotenant is held against."""

    name: str
    family: str
    rounds: int
    online_alone_ms: float
    online_delay_ratio: dict[str, float]
    """By mode: device time online kernels waited because of another tenant, over the completion time alone."""
    online_speedup_vs_sharing: dict[str, float]
    online_slowdown: dict[str, float]
    """By mode: completion time over that alone; 1 is untouched."""
    offline_ratio_vs_sharing: dict[str, float]
    """Offline kernel time by the end of the slower of the two online runs; after the faster one it has the device."""
    offline_rate_vs_sharing: dict[str, float]
    """Offline kernel time per second while the online program runs, under cotenant over under default sharing."""
    offline_vs_alone: dict[str, float]
    """By mode: kernel time per second while the online program runs, over that alone."""
    overhead_pct: float | None
    """Of the online completion time alone, through cotenant over plain."""
    overhead_pct_p50: float | None
    """Of the median latency: what the machine's other work does to single requests is not in it."""
    overhead_pct_unsampled: float | None
    """The same without timing one launch in 64, which asks the software GPU a question that a real driver need not."""
    spread: dict[str, Spread]
    latency_p50_ms: dict[str, float]
    latency_p99_ms: dict[str, float]
    busy: dict[str, float]
    """By mode: part of the time in which the device was busy."""
    failed: list[str]


def figures_of(name: str, family: str, rounds: Sequence[Round], failed: Sequence[str] = ()) -> PairFigures:
    """A pair's figures from its rounds; what a failed run leaves unknown is left out."""

    def by_mode(value: Callable[[Round, Mode], float], modes: Iterable[Mode] = SHARED) -> dict[str, float]:
        found = {mode: _median(value, rounds, mode) for mode in modes}
        return {mode: middle for mode, middle in found.items() if middle is not None}

    def against(value: Callable[[Scene, Scene, Round], float]) -> dict[str, float]:
        found = {}
        for sharing, mode in COTENANT.items():
            values = [
                value(one[mode], one[DEFAULT[sharing]], one)
                for one in rounds
                if mode in one and DEFAULT[sharing] in one and "offline alone" in one
            ]
            if values:
                found[sharing] = statistics.median(values)
        return found

    every: tuple[Mode, ...] = ("alone", "through", "unsampled", *SHARED)
    overheads = by_mode(
        lambda one, mode: one[mode].latency_sum_ns / one["alone"].latency_sum_ns, ["through", "unsampled"]
    )
    medians = by_mode(lambda one, mode: one[mode].latency_p50_ns / max(one["alone"].latency_p50_ns, 1), ["through"])
    return PairFigures(
        name=name,
        family=family,
        rounds=len(rounds),
        online_alone_ms=_alone_ms(rounds),
        online_delay_ratio=by_mode(lambda one, mode: one[mode].online_delayed_ns / one["alone"].latency_sum_ns),
        online_speedup_vs_sharing=against(lambda ours, theirs, _: theirs.latency_sum_ns / ours.latency_sum_ns),
        online_slowdown=by_mode(lambda one, mode: one[mode].latency_sum_ns / one["alone"].latency_sum_ns),
        offline_ratio_vs_sharing=against(
            lambda ours, theirs, one: same_window_ratio(ours, theirs, offline_rate(one["offline alone"]))
        ),
        offline_rate_vs_sharing=against(lambda ours, theirs, _: offline_rate(ours) / max(offline_rate(theirs), 1e-9)),
        offline_vs_alone=by_mode(lambda one, mode: offline_rate(one[mode]) / offline_rate(one["offline alone"])),
        overhead_pct=_percent_over(overheads.get("through")),
        overhead_pct_p50=_percent_over(medians.get("through")),
        overhead_pct_unsampled=_percent_over(overheads.get("unsampled")),
        spread={mode: spread_of(times) for mode in every if (times := _times(rounds, mode))},
        latency_p50_ms=by_mode(lambda one, mode: one[mode].latency_p50_ns / 1e6, every),
        latency_p99_ms=by_mode(lambda one, mode: one[mode].latency_p99_ns / 1e6, every),
        busy=by_mode(lambda one, mode: one[mode].busy_ns / one[mode].wall_ns, every),
        failed=list(failed),
    )


def offline_rate(scene: Scene) -> float:
    """Offline kernel time done per time."""
    return scene.offline_done_ns / scene.wall_ns


def same_window_ratio(ours: Scene, theirs: Scene, alone_rate: float) -> float:
    """Offline work by the end of the slower run, ours over theirs; after the faster one it goes on alone."""
    window_ns = max(ours.wall_ns, theirs.wall_ns)

    def done_ns(scene: Scene) -> float:
        return scene.offline_done_ns + alone_rate * (window_ns - scene.wall_ns)

    return done_ns(ours) / max(done_ns(theirs), 1.0)


def spread_of(times: Sequence[float]) -> Spread:
    """How much equal runs differ."""
    mean = statistics.fmean(times)
    return Spread(max_over_min=max(times) / min(times) - 1, variation=statistics.pstdev(times) / mean)


def ranges_of(pairs: Sequence[PairFigures]) -> dict[str, Range]:
    """Over all pairs: the distribution carries the claim, not a chosen pair."""
    found: dict[str, Range] = {}
    for sharing, mode in COTENANT.items():
        columns: dict[str, list[float | None]] = {
            "online_delay_ratio": [one.online_delay_ratio.get(mode) for one in pairs],
            "online_speedup_vs_sharing": [one.online_speedup_vs_sharing.get(sharing) for one in pairs],
            "online_slowdown": [one.online_slowdown.get(mode) for one in pairs],
            "offline_ratio_vs_sharing": [one.offline_ratio_vs_sharing.get(sharing) for one in pairs],
            "offline_rate_vs_sharing": [one.offline_rate_vs_sharing.get(sharing) for one in pairs],
            "offline_vs_alone": [one.offline_vs_alone.get(mode) for one in pairs],
            "spread": [one.spread[mode].max_over_min if mode in one.spread else None for one in pairs],
        }
        for figure, values in columns.items():
            if (range_ := range_of(values)) is not None:
                found[f"{figure}_{sharing}"] = range_
    overheads = {
        "overhead_pct": range_of(one.overhead_pct for one in pairs),
        "overhead_pct_p50": range_of(one.overhead_pct_p50 for one in pairs),
        "overhead_pct_unsampled": range_of(one.overhead_pct_unsampled for one in pairs),
    }
    return found | {name: known for name, known in overheads.items() if known is not None}


def range_of(values: Iterable[float | None]) -> Range | None:
    """Least, middle and largest of what is known."""
    known = [value for value in values if value is not None]
    return Range(min=min(known), median=statistics.median(known), max=max(known)) if known else None


def _percent_over(ratio: float | None) -> float | None:
    return None if ratio is None else 100 * (ratio - 1)


def _times(rounds: Sequence[Round], mode: Mode) -> list[float]:
    return [float(one[mode].latency_sum_ns) for one in rounds if mode in one]


def _alone_ms(rounds: Sequence[Round]) -> float:
    times = _times(rounds, "alone")
    return statistics.median(times) / 1e6 if times else 0.0


def _median(value: Callable[[Round, Mode], float], rounds: Sequence[Round], mode: Mode) -> float | None:
    values = [value(one, mode) for one in rounds if mode in one and "alone" in one and "offline alone" in one]
    return statistics.median(values) if values else None
