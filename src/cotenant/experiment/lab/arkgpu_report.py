"""What does the lab of control say in the end? Figures beside the paper's, and which targets were met."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.experiment.fill.pairs import Missing
from cotenant.experiment.lab.arkgpu import ATTAINED, Course, Judged, Simulated, simulated_of
from cotenant.experiment.lab.arkgpu_cases import LEVELS, LOADS, OBJECTIVES, Mixes
from cotenant.experiment.lab.arkgpu_live import LiveTold
from cotenant.experiment.lab.arkgpu_peak import Peaks
from cotenant.experiment.lab.arkgpu_steady import Rest
from cotenant.experiment.lab.arkgpu_steps import Quality, StepCourse

LIVE_OURS: Final = "cotenant"


class Published(msgspec.Struct, frozen=True):
    """What the paper says of its own system on V100 GPUs, in percent."""

    source: str = "ArkGPU"
    throughput_vs_mps_pct: float = 584.27
    goodput_vs_exclusive_pct: float = 94.98
    goodput_vs_mps_pct: float = 38.65


class Missed(msgspec.Struct, frozen=True, kw_only=True):
    """A case whose objective a device of its own keeps and `cotenant` does not."""

    name: str
    objective: int
    exclusive: float
    cotenant: float
    mps_priority: float
    services_only: float
    """With the services on one device and no training."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that the lab found."""

    lab: str = "arkgpu"
    seed: int
    quick: bool
    full: bool = False
    """Every mix under every load."""
    paper: Published = Published()
    services_ms: dict[str, tuple[float, float]]
    """By service: mean and p99 of a request alone, in milliseconds."""
    objectives: tuple[int, ...] = OBJECTIVES
    loads: tuple[str, ...] = LOADS
    levels: tuple[float, ...] = LEVELS
    simulated: Simulated
    missed: list[Missed]
    peaks: Peaks
    steps: Quality
    steady: list[Rest]
    live: list[LiveTold]
    left_out: list[Missing]
    met: dict[str, bool]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What plots are drawn from, beside the report."""

    courses: list[Course]
    steps: list[StepCourse]


def report_of(
    mixes: Mixes,
    judged: Sequence[Judged],
    control: tuple[Peaks, Quality, list[Rest]],
    told: Sequence[LiveTold],
    run: tuple[int, bool, list[Missing]],
    *,
    full: bool = False,
) -> Report:
    """Seed, whether it was quick and what was left out come last."""
    simulated = simulated_of(judged)
    peaks, steps, steady = control
    seed, quick, left_out = run
    return Report(
        seed=seed,
        quick=quick,
        full=full,
        services_ms={
            name: (round(service.mean_ns / 1e6, 3), round(service.p99_ns / 1e6, 3))
            for name, service in mixes.services.items()
        },
        simulated=simulated,
        missed=missed_of(judged),
        peaks=peaks,
        steps=steps,
        steady=steady,
        live=list(told),
        left_out=left_out,
        met=_met(simulated, peaks, steps, steady) | _met_live(told),
    )


def missed_of(judged: Sequence[Judged]) -> list[Missed]:
    """In full: each of them is one too many."""
    return [
        Missed(
            name=one.name,
            objective=one.objective,
            exclusive=one.ways["exclusive"].worst,
            cotenant=one.ways["cotenant"].worst,
            mps_priority=one.ways["mps-priority"].worst,
            services_only=one.services_only,
        )
        for one in judged
        if one.ways["exclusive"].worst >= ATTAINED > one.ways["cotenant"].worst
    ]


def _met(simulated: Simulated, peaks: Peaks, steps: Quality, steady: Sequence[Rest]) -> dict[str, bool]:
    paper, against = Published(), simulated.against
    attained = simulated.attained["cotenant"]
    return {
        "99 % within the objective wherever exclusive reaches it": attained == simulated.attainable,
        f"throughput at the objective over MPS, median >= +{paper.throughput_vs_mps_pct} %": (
            against["throughput_vs_mps_pct"].median >= paper.throughput_vs_mps_pct
        ),
        f"throughput at the objective over MPS at rising load, median >= +{paper.throughput_vs_mps_pct} %": (
            peaks.peak_vs_mps_pct.median >= paper.throughput_vs_mps_pct
        ),
        f"goodput over exclusive, median >= +{paper.goodput_vs_exclusive_pct} %": (
            against["goodput_vs_exclusive_pct"].median >= paper.goodput_vs_exclusive_pct
        ),
        f"goodput over MPS, median >= +{paper.goodput_vs_mps_pct} %": (
            against["goodput_vs_mps_pct"].median >= paper.goodput_vs_mps_pct
        ),
        "the share settles after every step of the load": all(one.is_settled for one in steps.steps),
        "no limit cycle in ten minutes of steady load": not any(one.is_cycle for one in steady),
    }


def _met_live(told: Sequence[LiveTold]) -> dict[str, bool]:
    if not told:
        return {}
    return {
        "live: 99 % within the objective wherever alone or exclusive reach it": all(
            one.ways[LIVE_OURS].attainment >= ATTAINED
            for one in told
            if max(one.ways[other].attainment for other in ("alone", "exclusive")) >= ATTAINED
        ),
        "live: more goodput than by default MPS and slices in every case": all(
            one.ways[LIVE_OURS].goodput > max(one.ways[other].goodput for other in ("mps", "slices")) for one in told
        ),
    }
