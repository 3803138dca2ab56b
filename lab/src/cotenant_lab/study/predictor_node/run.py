"""Compare every prediction of the node's predictor with measurements that it has not used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from cotenant.errors import ConfigError
from cotenant.workload.arrival_trace import read_azure, read_mooncake
from cotenant.workload.kernel_table import read_kernels
from cotenant.workload.timeline import Timeline
from cotenant_lab.data.gavel import TrainingPairs, read_pairs
from cotenant_lab.data.parvagpu import Profiles
from cotenant_lab.data.rapp import Surface
from cotenant_lab.study.data_files import DATA_PAGE, measurement_bytes
from cotenant_lab.study.device.measurements import read_measurements
from cotenant_lab.study.device.servers import ServerMeasurements
from cotenant_lab.study.predictor_node.co_location import (
    FLOORS,
    TURNS,
    Laws,
    SlowdownResults,
    TenantGroup,
    evaluate_together,
    instance_groups,
    server_groups,
    training_groups,
)
from cotenant_lab.study.predictor_node.comparison import (
    PredictionCase,
    PredictionComparison,
    all_met,
    compare_predictions,
)
from cotenant_lab.study.predictor_node.latency import ADDITIVE, CONSTANT, AloneLatency, SurfacePlot, evaluate_alone
from cotenant_lab.study.predictor_node.load import LoadResult, Window, evaluate_loads
from cotenant_lab.study.predictor_node.pairs import pairs_on_the_model, split_cases
from cotenant_lab.study.progress import show_parts

_QUICK: Final = 4
"""A quick run evaluates one in this many groups of tenants."""
_PAIRS: Final = "gavel/pairs_simulation_throughputs.csv.gz"
_AZURE: Final = {"Azure conversation": "conv", "Azure code": "code"}
_MOONCAKE: Final = "mooncake/conversation_trace.jsonl.gz"


class NodeMeasurements(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of the data directory."""

    streams: dict[str, Timeline]
    surface: Surface
    profiles: Profiles
    servers: list[ServerMeasurements]
    pairs: TrainingPairs
    arrivals: dict[str, tuple[int, ...]]


class PredictorNodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of study `predictor-node`; they depend on the measurements and the seed alone."""

    lab: str
    quick: bool
    seed: int
    alone: AloneLatency
    together: SlowdownResults
    split: list[PredictionComparison]
    """Share and neighbour at once."""
    load: list[LoadResult]
    met: dict[str, bool]


class PredictorNodeEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Data for plots."""

    curves: list[SurfacePlot]
    together: dict[str, list[PredictionCase]]
    windows: dict[str, list[Window]]


def evaluate_predictor(
    measured: NodeMeasurements, seed: int, progress: Callable[[str, int, int], None], *, quick: bool
) -> tuple[PredictorNodeReport, PredictorNodeEvidence]:
    """Evaluate latency alone, slowdown together, and the next load."""
    alone, curves = evaluate_alone(measured.surface, measured.profiles, measured.streams, progress)
    together, cases = evaluate_together(_sets(measured, quick=quick), progress)
    split = _split(measured.streams)
    progress("split shares", 1, 1)
    loads, windows = evaluate_loads(measured.arrivals, seed, quick=quick)
    progress("load", 1, 1)
    met = {**all_met([*alone.comparisons, *together.comparisons, *split]), **_loads_met(loads)}
    report = PredictorNodeReport(
        lab="predictor-node", quick=quick, seed=seed, alone=alone, together=together, split=split, load=loads, met=met
    )
    return report, PredictorNodeEvidence(curves=curves, together=cases, windows=windows)


def all_comparisons(report: PredictorNodeReport) -> list[PredictionComparison]:
    """Return the comparisons of latencies, of slowdowns, and of both."""
    return [*report.alone.comparisons, *report.together.comparisons, *report.split]


def _split(streams: Mapping[str, Timeline]) -> list[PredictionComparison]:
    """Evaluate both at once; intervals are no target, because they are for real GPUs."""
    cases = split_cases(streams)
    if not cases:
        return []
    name, source = "split shares on the software GPU", "Orion on the device model"
    return [compare_predictions(name, source, "nothing fitted", cases, rivals=(CONSTANT, ADDITIVE), covers=False)]


def _sets(measured: NodeMeasurements, *, quick: bool) -> Mapping[str, tuple[str, Sequence[TenantGroup], Laws]]:
    step = _QUICK if quick else 1
    return {
        "clients of a server": ("DISB, RTX 3080", server_groups(measured.servers), Laws(turns=TURNS)),
        "processes in an instance": ("ParvaGPU, A100", instance_groups(measured.profiles)[::step], Laws()),
        "training pairs": (
            "Gavel, K80, P100, V100",
            training_groups(measured.pairs)[::step],
            Laws(turns=TURNS, floors=FLOORS),
        ),
        "pairs on the software GPU": (
            "Orion on the device model",
            pairs_on_the_model(measured.streams)[::step],
            Laws(turns=TURNS),
        ),
    }


def _loads_met(loads: Sequence[LoadResult]) -> dict[str, bool]:
    return {f"load of {load.trace}, {load.window_s} s: {name}": met for load in loads for name, met in load.met.items()}


def run_predictor_node(
    directory: Path, seed: int, console: Console, report: Callable[[str], None], *, quick: bool
) -> tuple[PredictorNodeReport, PredictorNodeEvidence]:
    """Run the study with a progress bar on a terminal, or one line per part elsewhere."""
    measured = read_all(directory)
    with show_parts(console, report, "to do") as progress:
        return evaluate_predictor(measured, seed, progress, quick=quick)


def read_all(directory: Path) -> NodeMeasurements:
    """Read all files that this study uses; an error names the damaged file."""
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
            raise ConfigError("data", str(directory), f"has no arrival of {name}; {DATA_PAGE}")
    pairs_read = read_pairs(measurement_bytes(pairs), str(pairs))
    if not pairs_read.pairs:
        raise ConfigError("data", str(pairs), f"has no measured pair; {DATA_PAGE}")
    return NodeMeasurements(
        streams=streams,
        surface=device.surface,
        profiles=device.profiles,
        servers=device.servers,
        pairs=pairs_read,
        arrivals=arrivals,
    )
