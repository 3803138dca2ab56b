"""Wires the lab of gap filling: finds the measurements, shows how far it is, and hands over what was found."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console

from cotenant.apps.lab_progress import parts_shown
from cotenant.errors import ConfigError
from cotenant.experiment.kernels import Setting
from cotenant.experiment.lab.fikit_cases import catalogue, sweep, timelines
from cotenant.experiment.lab.fikit_report import Report, curve_cases, judge_fikit
from cotenant.sim.device import preset

PRESET: Final = "v100"


def run_fikit(
    directory: Path, live: str, seed: int, console: Console, say: Callable[[str], None], *, quick: bool
) -> Report:
    """The judgement; meanwhile a bar on a terminal, and elsewhere a line for each part."""
    measured = _live(live) if live else None
    pairs, missing = catalogue(directory, quick=quick)
    traced, unfit = timelines(directory, quick=quick)
    left_out = [*missing, *unfit]
    for one in left_out:
        say(f"left out: {one.name}: {one.why}")
    groups = {"pairs": pairs, "sweep": sweep(quick=quick), "timelines": traced}
    with parts_shown(console, say, "to play") as progress:
        return judge_fikit(
            {name: cases for name, cases in groups.items() if cases},
            curve_cases([case.pair for case in pairs], quick=quick),
            left_out,
            Setting(device=preset(PRESET), seed=seed),
            measured,
            os.cpu_count() or 1,
            progress,
            quick=quick,
        )


def _live(file: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(Path(file).read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError("--live", file, f"cannot be read: {error.strerror}; check the path") from None
    except msgspec.DecodeError as error:
        remedy = f"is no JSON of `cotenant bench fill --json`: {error}; make it again"
        raise ConfigError("--live", file, remedy) from None
    if found.get("bench") != "fill":
        raise ConfigError("--live", file, "is not what `cotenant bench fill --json` prints; give that")
    return found
