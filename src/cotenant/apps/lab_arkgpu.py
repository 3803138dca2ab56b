"""Wires the lab of control: finds the measurements, plays in simulated time and with real processes, tells how far."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rich.console import Console

from cotenant.apps.lab import measurement_bytes
from cotenant.apps.lab_fikit import PRESET
from cotenant.apps.lab_progress import parts_shown
from cotenant.errors import ConfigError
from cotenant.experiment.kernels import Setting
from cotenant.experiment.lab.arkgpu import judge_cases
from cotenant.experiment.lab.arkgpu_cases import RUN_NS, ark_cases, read_mixes
from cotenant.experiment.lab.arkgpu_live import LiveCase, LiveTold, judge_live, live_cases
from cotenant.experiment.lab.arkgpu_peak import judge_peaks, peak_cases
from cotenant.experiment.lab.arkgpu_report import Evidence, Report, report_of
from cotenant.experiment.lab.arkgpu_steady import judge_steady, steady_cases
from cotenant.experiment.lab.arkgpu_steps import judge_steps, step_cases
from cotenant.experiment.lab.fikit import Progress
from cotenant.format.measured.arrivals import read_azure, read_mooncake
from cotenant.sim.device import preset

ROUNDS: Final = 2
LIVE: Final = "live rounds"
_AZURE: Final = "azure_llm/AzureLLMInferenceTrace_2023_conv.csv.gz"
_MOONCAKE: Final = "mooncake/conversation_trace.jsonl.gz"


def run_arkgpu(
    directory: Path,
    seed: int,
    console: Console,
    say: Callable[[str], None],
    *,
    quick: bool,
    live: bool,
    full: bool = False,
) -> tuple[Report, Evidence]:
    """The judgement; meanwhile a bar on a terminal, and elsewhere a line for each part."""
    setting, workers = Setting(device=preset(PRESET), seed=seed), os.cpu_count() or 1
    traces = read_traces(directory)
    mixes = read_mixes(directory, setting, quick=quick)
    if not mixes.services or not mixes.trainings:
        raise ConfigError("data", str(directory), "has no service or no training; fetch the measurements again")
    acted, absent = live_cases(directory, quick=quick) if live else ([], [])
    left_out = [*mixes.missing, *absent]
    for one in left_out:
        say(f"left out: {one.name}: {one.why}")
    with parts_shown(console, say, "to play") as progress:
        cases = ark_cases(mixes, traces, seed, quick=quick, full=full)
        judged, courses = judge_cases(cases, setting, workers, progress, run_ns=RUN_NS // 3 if quick else RUN_NS)
        peaks = judge_peaks(peak_cases(mixes, seed, quick=quick), setting, workers, progress)
        steps, stepped = judge_steps(step_cases(mixes, seed, quick=quick), setting, workers, progress)
        steady = judge_steady(steady_cases(mixes, seed, quick=quick), setting, workers, progress, quick=quick)
        told = _live(acted, 1 if quick else ROUNDS, progress)
    report = report_of(mixes, judged, (peaks, steps, steady), told, (seed, quick, left_out), full=full)
    return report, Evidence(courses=courses, steps=stepped)


def read_traces(directory: Path) -> dict[str, tuple[int, ...]]:
    """Published arrivals, by the name of the load."""
    azure, mooncake = directory / _AZURE, directory / _MOONCAKE
    traces = {
        "azure_llm": read_azure(measurement_bytes(azure), str(azure)),
        "mooncake": read_mooncake(measurement_bytes(mooncake), str(mooncake)),
    }
    for name, instants in traces.items():
        if len(instants) < 2:
            raise ConfigError("data", str(directory), f"has no arrivals of {name}; fetch the measurements again")
    return traces


def _live(cases: list[LiveCase], rounds: int, progress: Progress) -> list[LiveTold]:
    """After the simulated part: its processes would take the time of these."""
    if not cases:
        return []
    done, total = 0, rounds * len(cases)

    def one_more() -> None:
        nonlocal done
        done += 1
        progress(LIVE, done, total)

    progress(LIVE, 0, total)
    with tempfile.TemporaryDirectory(prefix="cotenant-lab-") as home:
        return judge_live(Path(home), cases, rounds, one_more)
