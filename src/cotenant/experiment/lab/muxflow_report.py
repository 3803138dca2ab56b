"""What does the lab of one node say in the end? Before and after, beside the paper, and which targets were met."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.experiment.fill.pairs import Missing
from cotenant.experiment.lab.muxflow import P99_MOST, Distribution, Simulated, distribution_of
from cotenant.experiment.lab.muxflow_cases import DAY
from cotenant.experiment.lab.muxflow_live import Told

PROTECTED: Final = "cotenant mps"
DELAY_MOST: Final = 0.05
HEALTHY: Final = "healthy"


class Published(msgspec.Struct, frozen=True):
    """What the paper says of its cluster, in percent."""

    source: str = "MuxFlow, arXiv 2303.13803"
    utilization: tuple[int, int] = (26, 76)
    sm_activity: tuple[int, int] = (16, 33)
    memory: tuple[int, int] = (42, 48)
    online_slowdown: str = "below 20 %"


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """The cases with real processes, and how their figures are distributed."""

    cases: list[Told]
    figures: dict[str, Distribution]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that the lab found."""

    lab: str = "muxflow-node"
    seed: int
    quick: bool
    paper: Published = Published()
    day: dict[str, float]
    """By level of the device's time that a service asks for: the part of the day."""
    simulated: Simulated | None
    live: Live | None
    left_out: list[Missing]
    met: dict[str, bool]


def live_of(cases: Sequence[Told]) -> Live:
    """The distributions, over few cases."""
    columns = {
        "utilization_before": [one.before.utilization for one in cases],
        "utilization_after": [one.after.utilization for one in cases],
        "sm_activity_before": [one.before.sm_activity for one in cases],
        "sm_activity_after": [one.after.sm_activity for one in cases],
        "memory_before": [one.memory_before for one in cases],
        "memory_after": [one.memory_after for one in cases],
        "delay_ratio": [one.delay_ratio for one in cases],
        "p99_ratio_own_clock": [one.p99_ratio_own_clock for one in cases],
        "offline_vs_alone": [one.offline_vs_alone for one in cases],
    }
    return Live(cases=list(cases), figures={name: distribution_of(values) for name, values in columns.items()})


def report_of(
    simulated: Simulated | None, told: Sequence[Told], left_out: Sequence[Missing], seed: int, *, quick: bool
) -> Report:
    """Whatever could be played; nothing of which there was nothing is met."""
    live = live_of(told) if told else None
    met = {} if simulated is None else _met_simulated(simulated)
    return Report(
        seed=seed,
        quick=quick,
        day={f"{level:.2f}": part for level, part in DAY.items()},
        simulated=simulated,
        live=live,
        left_out=list(left_out),
        met=met if live is None else met | _met_live(live),
    )


def _met_simulated(simulated: Simulated) -> dict[str, bool]:
    ratio = simulated.figures[PROTECTED]["p99_ratio"]
    uses = [(one.before, one.after[PROTECTED]) for one in simulated.cases]
    return {
        "simulated: online p99 under MPS, median <= +5 %": ratio.median <= P99_MOST,
        "simulated: online p99 under MPS, max <= +5 %": ratio.max <= P99_MOST,
        "simulated: utilization rises in every case": all(
            after.utilization > before.utilization for before, after in uses
        ),
        "simulated: SM activity rises in every case": all(
            after.sm_activity > before.sm_activity for before, after in uses
        ),
    }


def _met_live(live: Live) -> dict[str, bool]:
    cases, delay = live.cases, live.figures["delay_ratio"]
    return {
        "live: online delay by the device's books, median <= 5 %": delay.median <= DELAY_MOST,
        "live: online delay by the device's books, max <= 5 %": delay.max <= DELAY_MOST,
        "live: utilization rises in every case": all(one.after.utilization > one.before.utilization for one in cases),
        "live: SM activity rises in every case": all(one.after.sm_activity > one.before.sm_activity for one in cases),
        "live: memory used rises in every case": all(one.memory_after > one.memory_before for one in cases),
        "live: who was evicted came back, in every case": all(one.evicted and one.came_back for one in cases),
        "live: the device is healthy afterwards": all(set(one.health) == {HEALTHY} for one in cases),
    }
