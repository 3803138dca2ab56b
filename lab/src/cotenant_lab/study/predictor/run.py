"""Judge the predictor of node and cluster by published measurements that no fit has used.

One model predicts both: the slowdown of a tenant among others (`node`) and the speed of a job next to services
(`cluster`). With `--parameters` the parameters are fitted first; otherwise those of the package are judged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from cotenant.errors import ConfigError
from cotenant.predict.speed_parameters import Parameters, load_parameters
from cotenant.units.share import WHOLE_PPM
from cotenant.workload.arrival_trace import read_azure, read_mooncake
from cotenant.workload.kernel_table import read_kernels
from cotenant.workload.timeline import Timeline
from cotenant_lab.data import igniter
from cotenant_lab.data.gavel import TrainingPairs, read_oracle, read_pairs
from cotenant_lab.data.parvagpu import Profiles
from cotenant_lab.data.rapp import Surface
from cotenant_lab.study.data_files import DATA_PAGE, measurement_bytes
from cotenant_lab.study.device.measurements import read_measurements
from cotenant_lab.study.device.servers import ServerMeasurements
from cotenant_lab.study.error import errors_of, relative
from cotenant_lab.study.predictor.comparison import PredictionComparison, all_met
from cotenant_lab.study.predictor.fitting import HeldOutErrors, fit_parameters
from cotenant_lab.study.predictor.judging import JudgedPredictor, JudgedSet, judge, judge_cases
from cotenant_lab.study.predictor.latency import AloneLatency, SurfacePlot, evaluate_alone
from cotenant_lab.study.predictor.left_out import gpu_of, judge_left_out
from cotenant_lab.study.predictor.load import LoadResult, Window, evaluate_loads
from cotenant_lab.study.predictor.measured import (
    AGAIN,
    GAVEL,
    MeasuredOutcome,
    disb_outcomes,
    gavel_outcomes,
    parva_outcomes,
    repeatable,
    split_outcomes,
)
from cotenant_lab.study.progress import show_parts

MEDIAN_MOST: Final = 0.12
P90_MOST: Final = 0.35
COVERAGE_LEAST: Final = 0.8
CONSTANT: Final = "constant"
ADDITIVE: Final = "additive"
REPEATED: Final = "Gavel: pairs that two measurements agree on"
_PAIRS: Final = "gavel/pairs_simulation_throughputs.csv.gz"
_AGAIN: Final = "gavel/oracle_throughputs.json.gz"
_AZURE: Final = {"Azure conversation": "conv", "Azure code": "code"}
_MOONCAKE: Final = "mooncake/conversation_trace.jsonl.gz"


class PredictorMeasurements(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of the data directory."""

    streams: dict[str, Timeline]
    surface: Surface
    profiles: Profiles
    servers: list[ServerMeasurements]
    pairs: TrainingPairs
    again: TrainingPairs
    split_alone: dict[igniter.Program, dict[int, igniter.Alone]]
    split_pairs: list[igniter.SplitPair]
    arrivals: dict[str, tuple[int, ...]]


class PredictorReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of study `predictor`."""

    lab: str = "predictor"
    quick: bool
    seed: int
    parameters: str
    """How the parameters were made."""
    law: dict[str, dict[str, float]]
    """By sharing mode."""
    node: JudgedPredictor
    """Slowdown of a tenant among others."""
    cluster: JudgedPredictor
    """Speed of a job next to services."""
    left_out: list[JudgedSet]
    """Every data set, and Gavel's pairs by GPU, with parameters that were fitted without any of its outcomes."""
    measured_again: dict[str, float]
    """Difference of Gavel's two measurements of the same pairs: median and p90."""
    held_out: list[HeldOutErrors]
    """Pairs on the software GPU; empty unless the parameters were fitted."""
    alone: AloneLatency
    load: list[LoadResult]
    met: dict[str, bool]


class PredictorEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Data for plots."""

    shown: dict[str, list[tuple[float, float]]]
    """Predicted and measured speeds by set."""
    curves: list[SurfacePlot]
    windows: dict[str, list[Window]]


def evaluate_predictor(
    measured: PredictorMeasurements,
    seed: int,
    workers: int,
    progress: Callable[[str, int, int], None],
    *,
    quick: bool,
    fit: bool,
) -> tuple[PredictorReport, PredictorEvidence, Parameters]:
    """Fit if asked for, then judge slowdowns, speeds, latencies alone and loads."""
    gavel, again = gavel_outcomes(measured.pairs), gavel_outcomes(measured.again, AGAIN)
    split = split_outcomes(measured.split_alone, measured.split_pairs)
    split_jobs = split_outcomes(measured.split_alone, measured.split_pairs, "space")
    disb, parva = disb_outcomes(measured.servers, measured.streams), parva_outcomes(measured.profiles)
    parameters, held_out = load_parameters(), list[HeldOutErrors]()
    fitted_to = [*split, *split_jobs, *parva, *gavel]
    if fit:
        parameters, held_out = fit_parameters(measured.streams, fitted_to, seed, workers, progress, quick=quick)
    sets = {outcomes[0].source: outcomes for outcomes in (split, parva, disb) if outcomes}
    jobs = [outcome for outcome in disb if outcome.job.active_ppm >= WHOLE_PPM]
    job_sets = {outcomes[0].source: outcomes for outcomes in (split_jobs, jobs) if outcomes}
    agreed = repeatable(gavel, again)
    if agreed:
        job_sets[REPEATED] = agreed
    node = judge("node", sets, {}, parameters, as_slowdown=True)
    cluster = judge("cluster", job_sets, {GAVEL: gavel, AGAIN: again}, parameters, as_slowdown=False)
    by_gpu = {f"{REPEATED}, {gpu}": [one for one in agreed if gpu_of(one) == gpu] for gpu in map(gpu_of, agreed)}
    left_out = [
        *judge_left_out(sets, fitted_to, parameters, as_slowdown=True),
        *judge_left_out(by_gpu, fitted_to, parameters, as_slowdown=False),
    ]
    progress("published measurements", 1, 1)
    alone, curves = evaluate_alone(measured.surface, measured.profiles, measured.streams, progress)
    loads, windows = evaluate_loads(measured.arrivals, seed, quick=quick)
    progress("load", 1, 1)
    report = PredictorReport(
        quick=quick,
        seed=seed,
        parameters=parameters.made_by,
        law={mode: _law(parameters, mode) for mode in parameters.modes},
        node=node,
        cluster=cluster,
        left_out=left_out,
        measured_again=_measured_again(gavel, again),
        held_out=held_out,
        alone=alone,
        load=loads,
        met=_met({"node": node, "cluster": cluster}, alone.comparisons, loads),
    )
    shown = {
        outcomes[0].source: [
            (round(case.estimate.point, 4), round(case.measured, 4))
            for case in judge_cases(outcomes, parameters, as_slowdown=False)
        ]
        for outcomes in (split_jobs, disb, parva, gavel)
        if outcomes
    }
    return report, PredictorEvidence(shown=shown, curves=curves, windows=windows), parameters


def _law(parameters: Parameters, mode: str) -> dict[str, float]:
    fields = msgspec.structs.asdict(parameters.modes[mode].law)
    return {name: float(value) for name, value in fields.items() if name != "sliced"}


def _measured_again(first: Sequence[MeasuredOutcome], again: Sequence[MeasuredOutcome]) -> dict[str, float]:
    speeds = {outcome.name: outcome.speed for outcome in again}
    differences = {
        outcome.name: relative(speeds[outcome.name], outcome.speed) for outcome in first if outcome.name in speeds
    }
    if not differences:
        return {}
    summary = errors_of(differences)
    return {"median": summary.median, "p90": summary.p90}


def _met(
    judged: Mapping[str, JudgedPredictor], alone: Sequence[PredictionComparison], loads: Sequence[LoadResult]
) -> dict[str, bool]:
    met = {}
    for name, result in judged.items():
        met[f"{name}: error_median <= {MEDIAN_MOST}"] = result.error_median <= MEDIAN_MOST
        met[f"{name}: error_p90 <= {P90_MOST}"] = result.error_p90 <= P90_MOST
        met[f"{name}: coverage >= {COVERAGE_LEAST}"] = result.coverage >= COVERAGE_LEAST
        met |= {
            f"{name}, {one.name}: better than a constant": one.error_median < one.constant.error_median
            for one in result.sets
        }
        met[f"{name}: better than a constant"] = result.error_median < result.constant.error_median
        met[f"{name}: better than additive utilization"] = result.error_median < result.additive.error_median
    met |= all_met(alone)
    met |= {
        f"load of {load.trace}, {load.window_s} s: {name}": is_met
        for load in loads
        for name, is_met in load.met.items()
    }
    return met


def run_predictor(
    directory: Path, seed: int, console: Console, report: Callable[[str], None], *, quick: bool, fit: bool
) -> tuple[PredictorReport, PredictorEvidence, Parameters]:
    """Run the study with a progress bar on a terminal, or one line per part elsewhere."""
    measured = read_predictor(directory)
    with show_parts(console, report, "to do") as progress:
        return evaluate_predictor(measured, seed, os.cpu_count() or 1, progress, quick=quick, fit=fit)


def read_predictor(directory: Path) -> PredictorMeasurements:
    """Read all files that this study uses; an error names the damaged file."""
    device = read_measurements(directory)
    streams = dict(device.streams)
    for path in sorted((directory / "orion/model_kernels").glob("*_fb1.csv")):
        streams[path.stem] = read_kernels(measurement_bytes(path), path.stem, str(path))
    pairs, again = directory / _PAIRS, directory / _AGAIN
    return PredictorMeasurements(
        streams=streams,
        surface=device.surface,
        profiles=device.profiles,
        servers=device.servers,
        pairs=_with_pairs(read_pairs(measurement_bytes(pairs), str(pairs)), pairs),
        again=_with_pairs(read_oracle(measurement_bytes(again), str(again)), again),
        split_alone=device.pairs.alone,
        split_pairs=device.pairs.pairs,
        arrivals=_arrivals(directory),
    )


def _arrivals(directory: Path) -> dict[str, tuple[int, ...]]:
    arrivals = {}
    for name, part in _AZURE.items():
        path = directory / f"azure_llm/AzureLLMInferenceTrace_2023_{part}.csv.gz"
        arrivals[name] = read_azure(measurement_bytes(path), str(path))
    mooncake = directory / _MOONCAKE
    arrivals["Mooncake"] = read_mooncake(measurement_bytes(mooncake), str(mooncake))
    for name, instants in arrivals.items():
        if not instants:
            raise ConfigError("data", str(directory), f"has no arrival of {name}; {DATA_PAGE}")
    return arrivals


def parameters_file(named: str) -> Path:
    """Return the path of `--parameters`; raise ConfigError now if it cannot be written."""
    path = Path(named)
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError("--parameters", named, "is not a file in an existing directory; name one")
    return path


def write_parameters(parameters: Parameters, path: Path) -> None:
    """Write the parameters as JSON, in the format of the product's `predict/speed_parameters.json`."""
    try:
        path.write_bytes(msgspec.json.encode(parameters) + b"\n")
    except OSError as error:
        raise ConfigError("--parameters", str(path), f"{error.strerror}; name a file that can be written") from None


def _with_pairs(pairs: TrainingPairs, path: Path) -> TrainingPairs:
    if not pairs.pairs:
        raise ConfigError("data", str(path), f"has no measured pair; {DATA_PAGE}")
    return pairs
