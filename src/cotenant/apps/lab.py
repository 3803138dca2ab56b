"""Wires the lab: finds and reads the measurements, shows how far it is, and hands over what was found."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from rich.console import Console

from cotenant.apps.lab_progress import parts_shown
from cotenant.errors import ConfigError, WorldError
from cotenant.experiment.lab.device import Evidence, Measurements, Report, judge_device
from cotenant.experiment.lab.servers import Measured, measured_of
from cotenant.format.kernels import read_kernels
from cotenant.format.measured import disb, parvagpu, rapp

VARIABLE: Final = "COTENANT_DATA"
USUAL: Final = "../shared/data"
_STREAMS: Final = "orion/model_kernels"
_SURFACE: Final = "rapp/v100_latency_ms_by_sm_quota_batch.csv.gz"
_PROFILES: Final = "parvagpu/all_models.csv"
_SERVERS: Final = ("trt", "triton", "tfs")
_WHOLE: Final = f"needs {_STREAMS}, {_SURFACE}, {_PROFILES}, disb/workloads and disb/results"


def named_directory(flag: str, environ: Mapping[str, str]) -> Path:
    """Where measurements are looked for; a place that was named must be there, the usual one need not."""
    given = flag or environ.get(VARIABLE, "")
    if given and not Path(given).is_dir():
        name = "--data" if flag else VARIABLE
        raise ConfigError(name, given, "no such directory; name the one that holds the measurements")
    return Path(given or USUAL)


def data_directory(flag: str, environ: Mapping[str, str]) -> Path:
    """Where the measurements are: the flag, the variable, or beside the project."""
    given = flag or environ.get(VARIABLE, "")
    path = named_directory(flag, environ)
    missing = [part for part in (_STREAMS, _SURFACE, _PROFILES, "disb/results") if not (path / part).exists()]
    if not missing:
        return path
    if flag:
        raise ConfigError("--data", flag, f"has no {missing[0]}; give a directory with the measurements ({_WHOLE})")
    if given:
        raise ConfigError(VARIABLE, given, f"has no {missing[0]}; name a directory with the measurements ({_WHOLE})")
    raise WorldError(
        f"the measurements to judge by are not here: {path / missing[0]} does not exist; "
        f"set {VARIABLE} or --data to the directory that holds them"
    )


def read_measurements(directory: Path) -> Measurements:
    """Everything the lab uses; a damaged file is a sentence that names it."""
    streams = {
        path.stem: read_kernels(measurement_bytes(path), path.stem, str(path))
        for path in sorted((directory / _STREAMS).glob("*_fwd.csv"))
    }
    if not streams:
        raise ConfigError("data", str(directory / _STREAMS), "has no *_fwd.csv; fetch the measurements again")
    for name, stream in streams.items():
        if not stream.busy_ns:
            raise ConfigError("Duration", 0, f"all kernels of {name} take no time; fetch the measurements again")
    surface = directory / _SURFACE
    profiles = directory / _PROFILES
    return Measurements(
        streams=streams,
        surface=rapp.read_surface(measurement_bytes(surface), str(surface)),
        profiles=parvagpu.read_profiles(measurement_bytes(profiles), str(profiles)),
        servers=[_server(directory / "disb", name) for name in _SERVERS],
    )


def run_lab(directory: Path, seed: int, console: Console, say: Callable[[str], None]) -> tuple[Report, Evidence]:
    """The judgement; meanwhile a bar on a terminal, and elsewhere a line for each part."""
    measured = read_measurements(directory)
    with parts_shown(console, say, "to do") as progress:
        return judge_device(measured, seed, os.cpu_count() or 1, progress)


def _server(directory: Path, server: str) -> Measured:
    results = sorted((directory / "results").glob(f"{server}.*.json"))
    if not results:
        raise ConfigError("data", str(directory / "results"), f"has no {server}.*.json; fetch the measurements again")
    seen = {path.name.split(".")[1]: disb.read_results(measurement_bytes(path), str(path)) for path in results}
    workloads = {}
    for name in seen:
        path = directory / "workloads" / f"{name}.json"
        workloads[name] = disb.read_workload(measurement_bytes(path), str(path))
    return measured_of(server, workloads, seen)


def measurement_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError("data", str(path), f"cannot be read: {error.strerror}; check the directory") from None
