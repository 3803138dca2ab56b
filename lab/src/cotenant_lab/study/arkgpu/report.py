"""Report of study `arkgpu`: results, the paper's results, and targets."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from cotenant.errors import ConfigError
from cotenant.simulate.kernels import RunSettings
from cotenant.softgpu.costs import hardware, hardware_hosts
from cotenant.workload.arrival_trace import read_azure, read_mooncake
from cotenant_lab.bench.fill.pairs import MissingPair
from cotenant_lab.study.arkgpu.cases import LEVELS, LOADS, OBJECTIVES, RUN_NS, Mixes, ark_cases, read_mixes
from cotenant_lab.study.arkgpu.claims import claims_of, evaluate_perturbed
from cotenant_lab.study.arkgpu.live import ArkLiveCase, LiveResult, evaluate_live, live_cases
from cotenant_lab.study.arkgpu.peak import Peaks, evaluate_peaks, peak_cases
from cotenant_lab.study.arkgpu.run import ATTAINED, ArkResult, ArkSimulation, CaseTimeline, evaluate_cases, simulated_of
from cotenant_lab.study.arkgpu.steady import SteadyResult, evaluate_steady, steady_cases
from cotenant_lab.study.arkgpu.steps import StepQuality, StepTimeline, evaluate_steps, step_cases
from cotenant_lab.study.claim import PerturbedCell, StudyClaim
from cotenant_lab.study.data_files import DATA_PAGE, measurement_bytes
from cotenant_lab.study.fikit.report import PRESET
from cotenant_lab.study.fikit.run import Progress
from cotenant_lab.study.progress import show_parts

LIVE_OURS: Final = "cotenant"
ROUNDS: Final = 2
LIVE: Final = "live rounds"
_AZURE: Final = "azure_llm/AzureLLMInferenceTrace_2023_conv.csv.gz"
_MOONCAKE: Final = "mooncake/conversation_trace.jsonl.gz"


class ArkgpuPaper(msgspec.Struct, frozen=True):
    """Results that the paper reports for its own system on V100 GPUs, in percent."""

    source: str = "ArkGPU"
    throughput_vs_mps_pct: float = 584.27
    goodput_vs_exclusive_pct: float = 94.98
    goodput_vs_mps_pct: float = 38.65


class MissedObjective(msgspec.Struct, frozen=True, kw_only=True):
    """A case whose objective a dedicated device keeps and `cotenant` does not."""

    name: str
    objective: int
    exclusive: float
    cotenant: float
    mps_priority: float
    services_only: float
    """With the services on one device and no training."""


class ArkgpuReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of study `arkgpu`."""

    lab: str = "arkgpu"
    seed: int
    quick: bool
    full: bool = False
    """Every mix under every load."""
    paper: ArkgpuPaper = ArkgpuPaper()
    services_ms: dict[str, tuple[float, float]]
    """By service: mean and p99 of a request alone, in milliseconds."""
    objectives: tuple[int, ...] = OBJECTIVES
    loads: tuple[str, ...] = LOADS
    levels: tuple[float, ...] = LEVELS
    simulated: ArkSimulation
    missed: list[MissedObjective]
    peaks: Peaks
    steps: StepQuality
    steady: list[SteadyResult]
    live: list[LiveResult]
    left_out: list[MissingPair]
    perturbed: list[PerturbedCell]
    """Medians over a few cases with one quantity wrong."""
    claims: list[StudyClaim]
    met: dict[str, bool]


class ArkgpuEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Data for plots that is not in the report."""

    timelines: list[CaseTimeline]
    steps: list[StepTimeline]


def report_of(
    mixes: Mixes,
    results: Sequence[ArkResult],
    control: tuple[Peaks, StepQuality, list[SteadyResult]],
    live: Sequence[LiveResult],
    run: tuple[int, bool, list[MissingPair]],
    *,
    full: bool = False,
    perturbed: Sequence[PerturbedCell] = (),
) -> ArkgpuReport:
    """Build the report; `run` has the seed, whether it was quick, and the omitted programs."""
    paper = ArkgpuPaper()
    published = (paper.throughput_vs_mps_pct, paper.goodput_vs_exclusive_pct, paper.goodput_vs_mps_pct)
    simulated = simulated_of(results)
    peaks, steps, steady = control
    seed, quick, left_out = run
    return ArkgpuReport(
        seed=seed,
        quick=quick,
        full=full,
        services_ms={
            name: (round(service.mean_ns / 1e6, 3), round(service.p99_ns / 1e6, 3))
            for name, service in mixes.services.items()
        },
        simulated=simulated,
        missed=missed_of(results),
        peaks=peaks,
        steps=steps,
        steady=steady,
        live=list(live),
        left_out=left_out,
        perturbed=list(perturbed),
        claims=claims_of(simulated, peaks, perturbed, published),
        met=_met(simulated, peaks, steps, steady) | _met_live(live),
    )


def missed_of(results: Sequence[ArkResult]) -> list[MissedObjective]:
    """Return every case whose objective a dedicated device keeps and cotenant does not."""
    return [
        MissedObjective(
            name=result.name,
            objective=result.objective,
            exclusive=result.modes["exclusive"].worst,
            cotenant=result.modes["cotenant"].worst,
            mps_priority=result.modes["mps-priority"].worst,
            services_only=result.services_only,
        )
        for result in results
        if result.modes["exclusive"].worst >= ATTAINED > result.modes["cotenant"].worst
    ]


def _met(simulated: ArkSimulation, peaks: Peaks, steps: StepQuality, steady: Sequence[SteadyResult]) -> dict[str, bool]:
    paper, against = ArkgpuPaper(), simulated.against
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
        "the share settles after every step of the load": all(step.is_settled for step in steps.steps),
        "no limit cycle in ten minutes of steady load": not any(mix.is_cycle for mix in steady),
    }


def _met_live(results: Sequence[LiveResult]) -> dict[str, bool]:
    if not results:
        return {}
    return {
        "live: 99 % within the objective wherever alone or exclusive reach it": all(
            result.modes[LIVE_OURS].attainment >= ATTAINED
            for result in results
            if max(result.modes[mode].attainment for mode in ("alone", "exclusive")) >= ATTAINED
        ),
        "live: more goodput than by default MPS and slices in every case": all(
            result.modes[LIVE_OURS].goodput > max(result.modes[mode].goodput for mode in ("mps", "slices"))
            for result in results
        ),
    }


def run_arkgpu(
    directory: Path,
    seed: int,
    console: Console,
    report: Callable[[str], None],
    *,
    quick: bool,
    live: bool,
    full: bool = False,
) -> tuple[ArkgpuReport, ArkgpuEvidence]:
    """Run the study with a progress bar on a terminal, or one line per part elsewhere."""
    setting, workers = RunSettings(device=hardware(PRESET), costs=hardware_hosts(), seed=seed), os.cpu_count() or 1
    traces = read_traces(directory)
    mixes = read_mixes(directory, setting, quick=quick)
    if not mixes.services or not mixes.trainings:
        raise ConfigError("data", str(directory), f"has no service or no training; {DATA_PAGE}")
    live_part, absent = live_cases(directory, quick=quick) if live else ([], [])
    left_out = [*mixes.missing, *absent]
    for missing in left_out:
        report(f"omitted: {missing.name}: {missing.why}")
    with show_parts(console, report, "to play") as progress:
        cases = ark_cases(mixes, traces, seed, quick=quick, full=full)
        results, timelines = evaluate_cases(cases, setting, workers, progress, run_ns=RUN_NS // 3 if quick else RUN_NS)
        peaks = evaluate_peaks(peak_cases(mixes, seed, quick=quick), setting, workers, progress)
        steps, stepped = evaluate_steps(step_cases(mixes, seed, quick=quick), setting, workers, progress)
        steady = evaluate_steady(steady_cases(mixes, seed, quick=quick), setting, workers, progress, quick=quick)
        perturbed = evaluate_perturbed(cases, setting, workers, progress, RUN_NS // 3 if quick else RUN_NS)
        live_results = _live(live_part, 1 if quick else ROUNDS, progress)
    facts = (seed, quick, left_out)
    result = report_of(mixes, results, (peaks, steps, steady), live_results, facts, full=full, perturbed=perturbed)
    return result, ArkgpuEvidence(timelines=timelines, steps=stepped)


def read_traces(directory: Path) -> dict[str, tuple[int, ...]]:
    """Read the published arrival traces, by the name of the load."""
    azure, mooncake = directory / _AZURE, directory / _MOONCAKE
    traces = {
        "azure_llm": read_azure(measurement_bytes(azure), str(azure)),
        "mooncake": read_mooncake(measurement_bytes(mooncake), str(mooncake)),
    }
    for name, instants in traces.items():
        if len(instants) < 2:
            raise ConfigError("data", str(directory), f"has no arrivals of {name}; {DATA_PAGE}")
    return traces


def _live(cases: list[ArkLiveCase], rounds: int, progress: Progress) -> list[LiveResult]:
    """Run the live part after the simulated one, whose processes would take CPU time from it."""
    if not cases:
        return []
    done, total = 0, rounds * len(cases)

    def one_more() -> None:
        nonlocal done
        done += 1
        progress(LIVE, done, total)

    progress(LIVE, 0, total)
    with tempfile.TemporaryDirectory(prefix="cotenant-lab-") as home:
        return evaluate_live(Path(home), cases, rounds, one_more)
