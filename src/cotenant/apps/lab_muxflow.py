"""Wires the lab of one node: finds the measurements, plays in simulated time and with real processes, tells how far."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from cotenant.apps.lab_fikit import PRESET
from cotenant.apps.lab_progress import parts_shown
from cotenant.experiment.kernels import Setting
from cotenant.experiment.lab.muxflow import judge_nodes
from cotenant.experiment.lab.muxflow_cases import node_cases
from cotenant.experiment.lab.muxflow_live import LiveCase, LiveNode, Told, judge_live, live_cases
from cotenant.experiment.lab.muxflow_report import Report, report_of
from cotenant.sim.device import preset

ROUNDS: Final = 3
LIVE: Final = "live rounds"


def run_muxflow(directory: Path, seed: int, console: Console, say: Callable[[str], None], *, quick: bool) -> Report:
    """The judgement; meanwhile a bar on a terminal, and elsewhere a line for each part."""
    cases, left_out = node_cases(directory, quick=quick)
    acted, absent = live_cases(directory, quick=quick)
    left_out += absent
    for one in left_out:
        say(f"left out: {one.name}: {one.why}")
    with parts_shown(console, say, "to play") as progress:
        setting = Setting(device=preset(PRESET), seed=seed)
        simulated = judge_nodes(cases, setting, os.cpu_count() or 1, progress) if cases else None
        told = _live(acted, 1 if quick else ROUNDS, setting.device.sm_count, progress)
    return report_of(simulated, told, left_out, seed, quick=quick)


def _live(cases: Sequence[LiveCase], rounds: int, sms: int, progress: Callable[[str, int, int], None]) -> list[Told]:
    """After the simulated part: its processes would take the time of these."""
    if not cases:
        return []
    told: list[Told] = []
    done = 0

    def one_more() -> None:
        nonlocal done
        done += 1
        progress(LIVE, done, rounds * len(cases))

    progress(LIVE, 0, rounds * len(cases))
    with tempfile.TemporaryDirectory(prefix="cotenant-lab-") as home, LiveNode(Path(home)) as node:
        for case in cases:
            told.append(judge_live(node, case, rounds, sms, one_more))
    return told
