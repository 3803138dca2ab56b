"""Wires the lab of the predictor: reads the measurements, shows how far it is, and hands over what was found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from rich.console import Console

from cotenant.apps.lab import measurement_bytes, read_measurements
from cotenant.apps.lab_progress import parts_shown
from cotenant.errors import ConfigError
from cotenant.experiment.lab.predictor import Evidence, Measurements, Report, judge_predictor
from cotenant.format.kernels import read_kernels
from cotenant.format.measured.arrivals import read_azure, read_mooncake
from cotenant.format.measured.gavel import read_pairs

_PAIRS: Final = "gavel/pairs_simulation_throughputs.csv.gz"
_AZURE: Final = {"Azure conversation": "conv", "Azure code": "code"}
_MOONCAKE: Final = "mooncake/conversation_trace.jsonl.gz"


def run_predictor(
    directory: Path, seed: int, console: Console, say: Callable[[str], None], *, quick: bool
) -> tuple[Report, Evidence]:
    """The judgement; meanwhile a bar on a terminal, and elsewhere a line for each part."""
    measured = read_all(directory)
    with parts_shown(console, say, "to do") as progress:
        return judge_predictor(measured, seed, progress, quick=quick)


def read_all(directory: Path) -> Measurements:
    """Everything that this lab uses; a damaged file is a sentence that names it."""
    device = read_measurements(directory)
    streams = dict(device.streams)
    for path in sorted((directory / "orion/model_kernels").glob("*_fb1.csv")):
        streams[path.stem] = read_kernels(measurement_bytes(path), path.stem, str(path))
    pairs = directory / _PAIRS
    arrivals = {}
    for name, part in _AZURE.items():
        path = directory / f"azure_llm/AzureLLMInferenceTrace_2023_{part}.csv.gz"
        arrivals[name] = read_azure(measurement_bytes(path), str(path))
    mooncake = directory / _MOONCAKE
    arrivals["Mooncake"] = read_mooncake(measurement_bytes(mooncake), str(mooncake))
    for name, instants in arrivals.items():
        if not instants:
            raise ConfigError("data", str(directory), f"has no arrival of {name}; fetch the measurements again")
    found = read_pairs(measurement_bytes(pairs), str(pairs))
    if not found.pairs:
        raise ConfigError("data", str(pairs), "has no pair that was measured; fetch the measurements again")
    return Measurements(
        streams=streams,
        surface=device.surface,
        profiles=device.profiles,
        servers=device.servers,
        pairs=found,
        arrivals=arrivals,
    )
