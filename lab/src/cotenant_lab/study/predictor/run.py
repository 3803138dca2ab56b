"""Fit speed models to simulated pairs and evaluate them by published measurements.

Three kinds of model are fitted to synthetic programs. The kind that is kept is chosen by pairs on the software GPU that
no fit has used: other synthetic programs, and kernels recorded on a V100. All kinds are then evaluated by Gavel's
training pairs and DISB's clients, which neither a fit nor the choice has used, with the rule alone and additive
utilization as baselines.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from rich.console import Console

from cotenant.errors import ConfigError
from cotenant.predict.speed import SpeedPredictor, Speeds, size_of, speeds_of
from cotenant.predict.speed_features import gpu_side, job_side, pair_facts
from cotenant.predict.speed_model import FEATURES, Model, answers, features, rule
from cotenant.predict.speed_parameters import VERSION, ModeParameters, Parameters
from cotenant.units.estimate import COVERAGE
from cotenant.workload.kernel_table import read_kernels
from cotenant.workload.timeline import Timeline
from cotenant_lab.data.gavel import TrainingPairs, read_oracle, read_pairs
from cotenant_lab.study.data_files import DATA_PAGE, measurement_bytes
from cotenant_lab.study.device.measurements import read_measurements
from cotenant_lab.study.device.servers import ServerMeasurements
from cotenant_lab.study.error import ErrorSummary, errors_of, relative
from cotenant_lab.study.predictor.fit import FITS
from cotenant_lab.study.predictor.measured import (
    AGAIN,
    DISB,
    GAVEL,
    MeasuredOutcome,
    differences,
    disb_outcomes,
    gavel_outcomes,
)
from cotenant_lab.study.predictor.pairs import MODES, PairCase, ServingMode, SimulatedPair, play
from cotenant_lab.study.progress import show_parts
from cotenant_lab.study.workers import mapping

MEDIAN: Final = 0.10
P90: Final = 0.25
ADDS_UP: Final = "utilisation that adds up"
RULE: Final = "the rule alone"
SEEN: Final = "once speeds are seen"
TWICE: Final = "the same pair, measured again"
_FITTED: Final = 3000
_HELD_OUT: Final = 600
_RECORDED: Final = 200
_QUICK: Final = 15
"""A quick run simulates one in this many pairs."""
_CHUNK: Final = 20
_SIDED: Final = 1 - (1 - COVERAGE) / 2
"""An interval of 90 % has 5 % of the outcomes on each side."""
_PAIRS: Final = "gavel/pairs_simulation_throughputs.csv.gz"
_AGAIN: Final = "gavel/oracle_throughputs.json.gz"


class SpeedMeasurements(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of the data directory."""

    streams: dict[str, Timeline]
    pairs: TrainingPairs
    again: TrainingPairs
    servers: list[ServerMeasurements]


class HeldOutErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Errors on pairs of the software GPU that no fit has used."""

    mode: str
    of: str
    """"speed" of the job, or online "slowdown"."""
    programs: str
    models: dict[str, ErrorSummary]


class MeasuredErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Errors on published measurements."""

    name: str
    where: str
    of: str
    kept: ErrorSummary
    """Of the model that is kept."""
    models: dict[str, ErrorSummary]
    baselines: dict[str, ErrorSummary]
    seen: ErrorSummary | None
    """Of the model that is kept, corrected by earlier outcomes of each program."""
    within: float
    """Fraction of the outcomes on the good side of the bound that should hold for 95 %."""
    met: dict[str, bool]


class PredictorReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of study `predictor`; they depend on the measurements and the seed alone."""

    lab: str
    quick: bool
    seed: int
    fitted_pairs: int
    kept: str
    held_out: list[HeldOutErrors]
    results: list[MeasuredErrors]
    met: dict[str, bool]


class PredictorEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Data for plots: predicted and measured values by name."""

    shown: dict[str, list[tuple[float, float]]]


class _Rows(msgspec.Struct, frozen=True):
    rows: Any
    """Features."""
    truth: Any
    """Logarithms of speed and slowdown."""


def evaluate_speed(
    measured: SpeedMeasurements, seed: int, workers: int, progress: Callable[[str, int, int], None], *, quick: bool
) -> tuple[PredictorReport, PredictorEvidence, Parameters]:
    """Simulate pairs, fit the models, choose one, and evaluate all."""
    fewer = _QUICK if quick else 1
    fitted, held, recorded = _play_all(measured.streams, seed, workers, fewer, progress)
    models: dict[ServingMode, dict[str, Model]] = {}
    for done, mode in enumerate(MODES):
        table = _table(fitted[mode], mode)
        errors = table.truth - table.rows[:, -2:]
        models[mode] = {name: fit(table.rows, errors, seed) for name, fit in FITS.items()}
        progress("fits", done + 1, len(MODES))
    held_out = []
    for mode in MODES:
        for programs, pairs in (("synthetic", held[mode]), ("recorded", recorded[mode])):
            held_out += _on_the_model(mode, programs, _table(pairs, mode), models[mode])
    kept = _best_model(held_out)
    parameters = Parameters(
        version=VERSION,
        made_by=f"cotenant lab predictor --seed {seed} --parameters FILE" + (" --quick" if quick else ""),
        kind=kept,
        seed=seed,
        pairs=len(fitted["space"]),
        features=FEATURES,
        modes={mode: _with_doubt(models[mode][kept], _table([*held[mode], *recorded[mode]], mode)) for mode in MODES},
    )
    gavel, again, disb = (
        gavel_outcomes(measured.pairs),
        gavel_outcomes(measured.again),
        disb_outcomes(measured.servers, measured.streams),
    )
    results: list[MeasuredErrors] = []
    shown: dict[str, list[tuple[float, float]]] = {}
    for name, outcomes in ((GAVEL, gavel), (AGAIN, again), (DISB, disb)):
        twice = differences(outcomes, again if name == GAVEL else gavel if name == AGAIN else [])
        lines, shown[name] = _evaluate(name, outcomes, models, parameters, twice)
        results += lines
        progress("published measurements", len(shown), 3)
    met = {f"{result.name}, {result.of}: {target}": met for result in results for target, met in result.met.items()}
    report = PredictorReport(
        lab="predictor",
        quick=quick,
        seed=seed,
        fitted_pairs=parameters.pairs,
        kept=kept,
        held_out=held_out,
        results=results,
        met=met,
    )
    return report, PredictorEvidence(shown=shown), parameters


DeviceRun = Mapping[ServingMode, Sequence[SimulatedPair]]


def _play_all(
    streams: dict[str, Timeline], seed: int, workers: int, fewer: int, progress: Callable[[str, int, int], None]
) -> tuple[DeviceRun, DeviceRun, DeviceRun]:
    """Return pairs to fit, and held-out ones: other synthetic programs, and recorded ones."""
    sizes = [count // fewer for count in (_FITTED, _HELD_OUT, _RECORDED)]
    cases = []
    for mode in MODES:
        cases += [PairCase(mode, number, seed) for number in range(sizes[0] + sizes[1])]
        cases += [PairCase(mode, number, seed, streams) for number in range(sizes[2])]
    played: list[SimulatedPair] = []
    with mapping(workers) as spread:
        pairs: Iterable[SimulatedPair] = spread(play, cases, chunksize=_CHUNK) if workers > 1 else spread(play, cases)
        for pair in pairs:
            played.append(pair)
            progress("pairs", len(played), len(cases))
    fitted: dict[ServingMode, list[SimulatedPair]] = {}
    held: dict[ServingMode, list[SimulatedPair]] = {}
    recorded: dict[ServingMode, list[SimulatedPair]] = {}
    for index, mode in enumerate(MODES):
        mode_pairs = played[index * sum(sizes) : (index + 1) * sum(sizes)]
        fitted[mode], held[mode], recorded[mode] = (
            mode_pairs[: sizes[0]],
            mode_pairs[sizes[0] : -sizes[2]],
            mode_pairs[-sizes[2] :],
        )
    return fitted, held, recorded


def _table(pairs: Sequence[SimulatedPair | MeasuredOutcome], mode: ServingMode) -> _Rows:
    rows = []
    for pair in pairs:
        job, gpu = job_side([pair.job]), gpu_side([pair.spot])
        facts = pair_facts(job, gpu)
        rows.append(features(job, gpu, facts, rule(job, gpu, facts, sliced=mode == "time"))[:, 0, 0])
    truth = np.log([(pair.speed, max(pair.slowdown, 1.0)) for pair in pairs])
    return _Rows(np.array(rows), truth)


def _on_the_model(mode: ServingMode, programs: str, table: _Rows, models: Mapping[str, Model]) -> list[HeldOutErrors]:
    predicted = {RULE: table.rows[:, -2:], **{name: answers(model, table.rows) for name, model in models.items()}}
    return [
        HeldOutErrors(
            mode=mode,
            of=of,
            programs=programs,
            models={name: _errors(answer[:, index], table.truth[:, index]) for name, answer in predicted.items()},
        )
        for index, of in enumerate(("speed", "slowdown"))
    ]


def _best_model(held_out: Sequence[HeldOutErrors]) -> str:
    """Return the model with the lowest mean of median errors, without the rule."""
    return min(FITS, key=lambda name: statistics.fmean(errors.models[name].median for errors in held_out))


def _with_doubt(model: Model, table: _Rows) -> ModeParameters:
    """Set the margin such that the bound holds for 95 % of the pairs that no fit has used."""
    predicted = answers(model, table.rows)
    missed = (predicted[:, 0] - table.truth[:, 0]) / size_of(-predicted[:, 0])
    beyond = (table.truth[:, 1] - predicted[:, 1]) / size_of(predicted[:, 1])
    doubts = [float(np.quantile(np.maximum(excess, 0.0), _SIDED)) for excess in (missed, beyond)]
    return ModeParameters(model, (round(doubts[0], 4), round(doubts[1], 4)))


def _evaluate(
    name: str,
    outcomes: Sequence[MeasuredOutcome],
    models: Mapping[ServingMode, Mapping[str, Model]],
    parameters: Parameters,
    repeated: Mapping[str, tuple[float, float]],
) -> tuple[list[MeasuredErrors], list[tuple[float, float]]]:
    mode = outcomes[0].mode
    table = _table(outcomes, mode)
    predicted = {kind: answers(model, table.rows) for kind, model in models[mode].items()}
    kept = predicted[parameters.kind]
    speeds = speeds_of(parameters.modes[mode], kept[:, 0], kept[:, 1])
    adds_up = np.log([outcome.adds_up for outcome in outcomes])
    results = []
    for index, of in enumerate(("speed", "slowdown")):
        chosen = np.array([of == "speed" or outcome.slowdown > 0 for outcome in outcomes])
        truth = table.truth[chosen, index]
        real = np.exp(truth)
        within = real >= speeds.low[chosen] if of == "speed" else real <= speeds.slowdown_high[chosen]
        baselines = {RULE: _errors(table.rows[chosen, len(FEATURES) - 2 + index], truth)}
        baselines[ADDS_UP] = _errors(adds_up[chosen] if of == "speed" else -adds_up[chosen], truth)
        if of == "speed" and repeated:
            baselines[TWICE] = errors_of(
                {case: relative(predicted, measured) for case, (predicted, measured) in repeated.items()}
            )
        errors = _errors(kept[chosen, index], truth)
        results.append(
            MeasuredErrors(
                name=name,
                where=", ".join(sorted({outcome.where for outcome in outcomes})),
                of=of,
                kept=errors,
                models={kind: _errors(answer[chosen, index], truth) for kind, answer in predicted.items()},
                baselines=baselines,
                seen=_once_seen(outcomes, speeds, SpeedPredictor((), mode, parameters)) if of == "speed" else None,
                within=round(float(np.mean(within)), 4),
                met={
                    f"median at most {MEDIAN:.0%}": errors.median <= MEDIAN,
                    f"p90 at most {P90:.0%}": errors.p90 <= P90,
                    f"better than {ADDS_UP}": errors.median < baselines[ADDS_UP].median,
                },
            )
        )
    points = [(round(float(a), 4), round(outcome.speed, 4)) for a, outcome in zip(speeds.point, outcomes, strict=True)]
    return results, points


def _once_seen(outcomes: Sequence[MeasuredOutcome], speeds: Speeds, predictor: SpeedPredictor) -> ErrorSummary:
    """Predict in the order of the file; each outcome corrects later predictions of the same program."""
    errors = {}
    for index, outcome in enumerate(outcomes):
        raw = Speeds(*(table[index : index + 1, None] for table in speeds))
        predicted = predictor.corrected(raw, [outcome.profile], [outcome.co_runners])
        errors[outcome.name] = relative(float(predicted.point[0, 0]), outcome.speed)
        predictor.learn(outcome.profile, outcome.co_runners, float(raw.point[0, 0]), outcome.speed)
    return errors_of(errors)


def _errors(predicted: Any, truth: Any) -> ErrorSummary:
    return errors_of(
        {f"case {index}": float(error) for index, error in enumerate(np.abs(np.exp(predicted - truth) - 1))}
    )


def run_predictor(
    directory: Path, seed: int, console: Console, report: Callable[[str], None], *, quick: bool
) -> tuple[PredictorReport, PredictorEvidence, Parameters]:
    """Run the study with a progress bar on a terminal, or one line per part elsewhere."""
    measured = read_speeds(directory)
    with show_parts(console, report, "to do") as progress:
        return evaluate_speed(measured, seed, os.cpu_count() or 1, progress, quick=quick)


def read_speeds(directory: Path) -> SpeedMeasurements:
    """Read all files that this study uses; an error names the damaged file."""
    device = read_measurements(directory)
    streams = dict(device.streams)
    for path in sorted((directory / "orion/model_kernels").glob("*_fb1.csv")):
        streams[path.stem] = read_kernels(measurement_bytes(path), path.stem, str(path))
    pairs, again = directory / _PAIRS, directory / _AGAIN
    return SpeedMeasurements(
        streams=streams,
        pairs=_with_pairs(read_pairs(measurement_bytes(pairs), str(pairs)), pairs),
        again=_with_pairs(read_oracle(measurement_bytes(again), str(again)), again),
        servers=device.servers,
    )


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
