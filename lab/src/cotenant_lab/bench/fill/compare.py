"""Compare the live results of each pair with the simulator and with the oracle."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import msgspec

from cotenant.simulate.kernels import RunSettings
from cotenant_lab.bench.fill.metrics import COTENANT, PairMetrics, Range, range_of
from cotenant_lab.bench.fill.pairs import Pair
from cotenant_lab.study.fikit.run import WORTH_FILLING, FikitCase, FikitResult, evaluate


class PairComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One pair: live results against simulated ones, by sharing."""

    name: str
    fill_vs_oracle: dict[str, float]
    """Simulated: offline kernel time over the oracle's at the same delay; pairs without gaps to fill are omitted."""
    simulated_delay_ratio: dict[str, float]
    simulated_offline_vs_alone: dict[str, float]
    live_vs_simulated: dict[str, float]
    """Offline kernel time per second, live over simulated; pairs without gaps to fill are omitted."""


def compare_pairs(
    pairs: Sequence[Pair], live: Sequence[PairMetrics], setting: RunSettings, report: Callable[[str], None]
) -> list[PairComparison]:
    """Simulate every pair and compare."""
    comparisons = []
    for index, (pair, metrics) in enumerate(zip(pairs, live, strict=True), start=1):
        report(f"pair {index} of {len(pairs)} on the simulated device: {pair.name}")
        comparisons.append(_comparison(metrics, evaluate(FikitCase(pair=pair, rules=setting.rules), setting)))
    return comparisons


def _comparison(live: PairMetrics, result: FikitResult) -> PairComparison:
    fillable = [sharing for sharing in COTENANT if result.oracle_vs_wall[sharing] >= WORTH_FILLING]
    simulated = {sharing: result.metrics.offline_vs_alone[mode] for sharing, mode in COTENANT.items()}
    measured = {
        sharing: live.offline_vs_alone[mode] for sharing, mode in COTENANT.items() if mode in live.offline_vs_alone
    }
    return PairComparison(
        name=live.name,
        fill_vs_oracle={sharing: ratio for sharing, ratio in result.fill_vs_oracle.items() if sharing in fillable},
        simulated_delay_ratio={sharing: result.metrics.online_delay_ratio[mode] for sharing, mode in COTENANT.items()},
        simulated_offline_vs_alone=simulated,
        live_vs_simulated={
            sharing: measured[sharing] / max(simulated[sharing], 1e-9) for sharing in fillable if sharing in measured
        },
    )


def ranges_of_comparisons(comparisons: Sequence[PairComparison]) -> dict[str, Range]:
    """Return the range of each ratio over all pairs that have gaps to fill."""
    ranges: dict[str, Range] = {}
    for sharing in COTENANT:
        for name in ("fill_vs_oracle", "live_vs_simulated"):
            columns: list[Mapping[str, float]] = [getattr(comparison, name) for comparison in comparisons]
            if (range_ := range_of(column.get(sharing) for column in columns)) is not None:
                ranges[f"{name}_{sharing}"] = range_
    return ranges


def agreement(comparisons: Sequence[PairComparison], live: Sequence[PairMetrics]) -> dict[str, float]:
    """Return, by sharing, the median difference between the live and the simulated online delay ratio."""
    medians = {}
    for sharing, mode in COTENANT.items():
        differences = [
            abs(comparison.simulated_delay_ratio[sharing] - metrics.online_delay_ratio[mode])
            for comparison, metrics in zip(comparisons, live, strict=True)
            if mode in metrics.online_delay_ratio
        ]
        if differences:
            medians[sharing] = statistics.median(differences)
    return medians
