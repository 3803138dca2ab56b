"""Wires the lab of placement: reads the measurements, tells how far it is, and shows what was found."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.text import Text

from cotenant.apps.lab import measurement_bytes
from cotenant.apps.lab_fikit import PRESET
from cotenant.apps.lab_progress import parts_shown
from cotenant.apps.show import table
from cotenant.domain.load import TRAINING
from cotenant.errors import ConfigError
from cotenant.experiment.kernels import Setting
from cotenant.experiment.lab.caps import judge_caps
from cotenant.experiment.lab.muxflow_cases import node_cases
from cotenant.experiment.lab.placement import judge_mixes, judge_trainings, mixes_of
from cotenant.experiment.lab.placement_report import Report, report_of
from cotenant.format.measured.gavel import read_pairs
from cotenant.sim.device import preset

_PAIRS: Final = "gavel/pairs_simulation_throughputs.csv.gz"
_MIXES: Final = 200
_SIZES: Final = (2,) * 6 + (3,) * 4
_CAPPED: Final = 12
_QUICK_SIZES: Final = (2, 2)


def run_placement(directory: Path, seed: int, console: Console, say: Callable[[str], None], *, quick: bool) -> Report:
    """The judgement; meanwhile a bar on a terminal, and elsewhere a line for each part."""
    path = directory / _PAIRS
    pairs = read_pairs(measurement_bytes(path), str(path))
    cases, left_out = node_cases(directory, quick=quick)
    for one in left_out:
        say(f"left out: {one.name}: {one.why}")
    services = list({(case.pair.online.name, case.level): case.pair.online for case in cases}.values())
    below = {case.pair.offline.name: case.pair.offline for case in cases}
    trainings = [msgspec.structs.replace(load, arrival=TRAINING) for load in below.values()]
    if not services or not pairs.pairs:
        raise ConfigError("data", str(directory), "has no pair or no service; fetch the measurements again")
    setting = Setting(device=preset(PRESET), seed=seed)
    mixes = mixes_of(services, trainings, setting, random.Random(seed), _QUICK_SIZES if quick else _SIZES)
    with parts_shown(console, say, "to judge") as progress:
        judged = judge_trainings(pairs, seed, _MIXES // (10 if quick else 1), progress)
        judged.append(judge_mixes(mixes, setting, os.cpu_count() or 1, progress))
        beside = [(load, trainings[place % len(trainings)]) for place, load in enumerate(services)]
        some = beside[:: max(len(beside) // (2 if quick else _CAPPED), 1)]
        caps = judge_caps(some, setting, os.cpu_count() or 1, progress)
    return report_of(judged, caps, seed, quick=quick)


def show_placement(console: Console, report: Report) -> None:
    """`cotenant lab placement-node`."""
    columns = ["MIXES", "BY", "POLICY", "DONE BY A TENANT", "BY ITS TRAININGS", "BY THE WORST OFF", "OBJECTIVES BROKEN"]
    rows: list[list[str | Text]] = []
    for one in report.judged:
        for number, (policy, figures) in enumerate(one.policies.items()):
            first = [f"{one.mixes} x {one.name}", one.source] if not number else ["", ""]
            offline = f"{figures.offline:.1%}" if figures.offline else ""
            rows.append(
                [*first, policy, f"{figures.goodput:.1%}", offline, f"{figures.worst:.1%}", str(figures.broken)]
            )
    console.print(table("What each gets done, of what it does alone", columns, rows))
    columns = ["OFFLINE UNDER MPS", "PAIRS", "ITS SMS", "DONE BY A TRAINING", "P99 OVER ALONE", "OBJECTIVES BROKEN"]
    caps = report.caps
    rows = [
        [name, str(caps.pairs), sms, f"{found.offline:.1%}", f"x{found.p99:.2f}", str(found.broken)]
        for name, sms, found in (
            ("the gate alone", "all", caps.free),
            ("and what online leaves", f"{caps.percent:.0f} %", caps.capped),
        )
    ]
    console.print(table("Medians", columns, rows))
    missed = [target for target, met in report.met.items() if not met]
    for target in missed:
        console.print(Text(f"{target}: missed", style="bold red"))
    console.print(Text(f"{len(report.met) - len(missed)} of {len(report.met)} targets are met"))
