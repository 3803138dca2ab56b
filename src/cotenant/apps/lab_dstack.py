"""Wires the lab of many models on one GPU: finds the measurements, plays every combination, tells how far."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rich.console import Console

from cotenant.apps.lab import measurement_bytes
from cotenant.apps.lab_progress import parts_shown
from cotenant.errors import ConfigError, WorldError
from cotenant.experiment.lab.dstack import ASKED, WAYS, Task, play_all
from cotenant.experiment.lab.dstack_cases import NAMED, SIZES, combinations, served_models, shown
from cotenant.experiment.lab.dstack_law import judge_law
from cotenant.experiment.lab.dstack_report import Report, report_of
from cotenant.format.measured.parvagpu import read_profiles
from cotenant.format.measured.rapp import read_surface

_SURFACE: Final = "rapp/v100_latency_ms_by_sm_quota_batch.csv.gz"
_PROFILES: Final = "parvagpu/all_models.csv"
_QUICK_EVERY: Final = 8
"""Of the combinations, one in so many."""


def run_dstack(directory: Path, seed: int, console: Console, say: Callable[[str], None], *, quick: bool) -> Report:
    """The judgement; meanwhile a bar on a terminal, and elsewhere a line."""
    path = directory / _SURFACE
    if not path.exists():
        raise WorldError(
            f"the measurements to judge by are not here: {path} does not exist; "
            "set COTENANT_DATA or --data to the directory that holds them"
        )
    surface = read_surface(measurement_bytes(path), str(path))
    models = served_models(surface)
    if len(models) < min(SIZES):
        wanted = ", ".join(NAMED.values())
        raise ConfigError("data", str(path), f"has fewer than two of {wanted}; fetch the measurements again")
    for name in NAMED.values():
        if name not in {model.name for model in models}:
            say(f"left out: {name}: was not measured")
    law: dict[int, list[float]] = {}
    if (directory / _PROFILES).exists():
        law = judge_law(read_profiles(measurement_bytes(directory / _PROFILES), str(directory / _PROFILES)))
    else:
        say(f"left out: how runs without shares divide a GPU: {directory / _PROFILES} does not exist")
    chosen = combinations(models)
    if quick:
        chosen = chosen[::-_QUICK_EVERY]  # from the last on, which is the one of all models
    tasks = [Task(one, ASKED, WAYS, seed * len(chosen) + place) for place, one in enumerate(chosen)]
    tasks.sort(key=lambda task: -len(task.models))  # the longest first, so that no process is left alone at the end
    with parts_shown(console, say, "to play") as progress:
        played = play_all(tasks, os.cpu_count() or 1, progress)
    return report_of([shown(surface, model) for model in models], played, law, seed, quick=quick)
