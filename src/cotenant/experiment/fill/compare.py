"""What would the simulator have said of the same pairs, and the oracle? Live runs are held against it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import msgspec

from cotenant.experiment.fill.figures import COTENANT, PairFigures, Range, range_of
from cotenant.experiment.fill.pairs import Pair
from cotenant.experiment.kernels import Setting
from cotenant.experiment.lab.fikit import WORTH_FILLING, Case, Judged, judge


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One pair, by sharing."""

    name: str
    fill_vs_oracle: dict[str, float]
    """Simulated: offline kernel time over the oracle's at the same delay; without those who have nothing to fill."""
    simulated_delay_ratio: dict[str, float]
    simulated_offline_vs_alone: dict[str, float]
    live_vs_simulated: dict[str, float]
    """Offline kernel time per second, live over simulated; without those who have nothing to fill."""


def compare_pairs(
    pairs: Sequence[Pair], live: Sequence[PairFigures], setting: Setting, say: Callable[[str], None]
) -> list[Compared]:
    """Every pair once more, under the simulated clock."""
    found = []
    for place, (pair, figures) in enumerate(zip(pairs, live, strict=True), start=1):
        say(f"pair {place} of {len(pairs)} on the simulated device: {pair.name}")
        found.append(_compared(figures, judge(Case(pair=pair, rules=setting.rules), setting)))
    return found


def _compared(live: PairFigures, judged: Judged) -> Compared:
    worth = [sharing for sharing in COTENANT if judged.oracle_vs_wall[sharing] >= WORTH_FILLING]
    simulated = {sharing: judged.figures.offline_vs_alone[mode] for sharing, mode in COTENANT.items()}
    seen = {sharing: live.offline_vs_alone[mode] for sharing, mode in COTENANT.items() if mode in live.offline_vs_alone}
    return Compared(
        name=live.name,
        fill_vs_oracle={sharing: judged.fill_vs_oracle[sharing] for sharing in worth},
        simulated_delay_ratio={sharing: judged.figures.online_delay_ratio[mode] for sharing, mode in COTENANT.items()},
        simulated_offline_vs_alone=simulated,
        live_vs_simulated={
            sharing: seen[sharing] / max(simulated[sharing], 1e-9) for sharing in worth if sharing in seen
        },
    )


def ranges_of_compared(compared: Sequence[Compared]) -> dict[str, Range]:
    """Over all pairs that have something to fill."""
    found: dict[str, Range] = {}
    for sharing in COTENANT:
        for name in ("fill_vs_oracle", "live_vs_simulated"):
            columns: list[Mapping[str, float]] = [getattr(one, name) for one in compared]
            if (range_ := range_of(column.get(sharing) for column in columns)) is not None:
                found[f"{name}_{sharing}"] = range_
    return found


def agreement(compared: Sequence[Compared], live: Sequence[PairFigures]) -> dict[str, float]:
    """By sharing: the median distance of the online delay, live from simulated."""
    found = {}
    for sharing, mode in COTENANT.items():
        apart = [
            abs(one.simulated_delay_ratio[sharing] - figures.online_delay_ratio[mode])
            for one, figures in zip(compared, live, strict=True)
            if mode in figures.online_delay_ratio
        ]
        if apart:
            found[sharing] = statistics.median(apart)
    return found
