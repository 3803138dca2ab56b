"""Wires the lab of speeds: reads the measurements, plays and fits, and keeps what was fitted if asked to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from cotenant.apps.lab import measurement_bytes, read_measurements
from cotenant.apps.lab_progress import parts_shown
from cotenant.errors import ConfigError
from cotenant.experiment.lab.speed import Evidence, Measurements, Report, judge_speed
from cotenant.format.kernels import read_kernels
from cotenant.format.measured.gavel import Pairs, read_oracle, read_pairs
from cotenant.policy.predict.speed_parameters import Parameters

_PAIRS: Final = "gavel/pairs_simulation_throughputs.csv.gz"
_AGAIN: Final = "gavel/oracle_throughputs.json.gz"


def run_speed(
    directory: Path, seed: int, console: Console, say: Callable[[str], None], *, quick: bool
) -> tuple[Report, Evidence, Parameters]:
    """The judgement; meanwhile a bar on a terminal, and elsewhere a line for each part."""
    measured = read_speeds(directory)
    with parts_shown(console, say, "to do") as progress:
        return judge_speed(measured, seed, os.cpu_count() or 1, progress, quick=quick)


def read_speeds(directory: Path) -> Measurements:
    """Everything that this lab uses; a damaged file is a sentence that names it."""
    device = read_measurements(directory)
    streams = dict(device.streams)
    for path in sorted((directory / "orion/model_kernels").glob("*_fb1.csv")):
        streams[path.stem] = read_kernels(measurement_bytes(path), path.stem, str(path))
    pairs, again = directory / _PAIRS, directory / _AGAIN
    return Measurements(
        streams=streams,
        pairs=_some(read_pairs(measurement_bytes(pairs), str(pairs)), pairs),
        again=_some(read_oracle(measurement_bytes(again), str(again)), again),
        servers=device.servers,
    )


def parameters_file(named: str) -> Path:
    """Where `--parameters` says; ConfigError now, rather than after the work, where nothing can be written."""
    path = Path(named)
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError("--parameters", named, "is no file in a directory that is there; name one")
    return path


def keep_parameters(parameters: Parameters, path: Path) -> None:
    """The package's own file, to be used from then on, or another one to look at."""
    try:
        path.write_bytes(msgspec.json.encode(parameters) + b"\n")
    except OSError as error:
        raise ConfigError("--parameters", str(path), f"{error.strerror}; name a file that can be written") from None


def _some(pairs: Pairs, path: Path) -> Pairs:
    if not pairs.pairs:
        raise ConfigError("data", str(path), "has no pair that was measured; fetch the measurements again")
    return pairs
