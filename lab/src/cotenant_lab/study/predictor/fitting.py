"""Fit the parameters of the predictor: the law of each sharing mode, the model of its errors, and the intervals.

The law's turn-taking term is chosen by recorded programs on the software GPU; its interference terms are fitted to the
fit half of iGniter's pairs. The models of its errors are fitted to synthetic programs on a software GPU without
interference. How far they are trusted, and how wide intervals are, is chosen by the fit halves of the measurements.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from cotenant.predict.speed import size_of
from cotenant.predict.speed_features import gpu_side, job_side, pair_facts
from cotenant.predict.speed_model import FEATURES, Model, SharingLaw, answers, features, interference, rule
from cotenant.predict.speed_parameters import VERSION, ModeParameters, Parameters
from cotenant.units.estimate import COVERAGE
from cotenant.workload.timeline import Timeline
from cotenant_lab.study.error import ErrorSummary, errors_of
from cotenant_lab.study.predictor.fit import FITS
from cotenant_lab.study.predictor.measured import MeasuredOutcome
from cotenant_lab.study.predictor.pairs import MODES, PairCase, ServingMode, SimulatedPair, play
from cotenant_lab.study.workers import mapping

RULE: Final = "the law alone"
TURNS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
TRUSTS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
_UNJUDGED_TRUST: Final = 0.5
"""Part of the correction that is applied where it changes no measured outcome: all of it fits simulated pairs best, and
measured ones, in the modes that have some, much less of it."""
_WEIGHT_OF_MEAN: Final = 0.25
"""Weight of the mean error relative to the median error, so that a law with a few extreme errors is not chosen."""
_FITTED: Final = 3000
_HELD_OUT: Final = 600
_RECORDED: Final = 200
_QUICK: Final = 15
"""A quick run simulates one in this many pairs."""
_CHUNK: Final = 20
_USUAL_DOUBT: Final = 0.3
"""Least margin of the intervals, in logarithms times the slowdown. Our choice."""

Progress = Callable[[str, int, int], None]
DeviceRun = Mapping[ServingMode, Sequence[SimulatedPair]]


class HeldOutErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Errors on pairs of the software GPU that no fit has used."""

    mode: str
    of: str
    """"speed" of the job, or online "slowdown"."""
    programs: str
    models: dict[str, ErrorSummary]


class Rows(msgspec.Struct, frozen=True):
    """Features and results of pairs."""

    rows: Any
    truth: Any
    """Logarithms of speed and slowdown."""
    interference: Any
    """Logarithms that the law adds to both."""


def fit_parameters(
    streams: dict[str, Timeline],
    outcomes: Sequence[MeasuredOutcome],
    seed: int,
    workers: int,
    progress: Progress,
    *,
    quick: bool,
) -> tuple[Parameters, list[HeldOutErrors]]:
    """Simulate pairs, fit laws and models, choose a kind of model, and set the intervals."""
    fitted, held, recorded = _play_all(streams, seed, workers, _QUICK if quick else 1, progress)
    fit_outcomes = [outcome for outcome in outcomes if outcome.is_fit]
    laws = {mode: choose_law(mode, recorded[mode], fit_outcomes) for mode in MODES}
    models: dict[ServingMode, dict[str, Model]] = {}
    for done, mode in enumerate(MODES):
        table = table_of(fitted[mode], laws[mode])
        errors = table.truth - table.rows[:, -2:]
        models[mode] = {name: fit(table.rows, errors, seed) for name, fit in FITS.items()}
        progress("fits", done + 1, len(MODES))
    held_out = []
    for mode in MODES:
        for programs, pairs in (("synthetic", held[mode]), ("recorded", recorded[mode])):
            held_out += _on_the_model(mode, programs, table_of(pairs, laws[mode]), models[mode], laws[mode])
    kept = min(FITS, key=lambda name: statistics.fmean(errors.models[name].median for errors in held_out))
    modes = {}
    for mode in MODES:
        law = choose_trust(models[mode][kept], laws[mode], [one for one in fit_outcomes if one.mode == mode])
        modes[mode] = (models[mode][kept], law)
    doubts = doubts_of(modes, fit_outcomes)
    parameters = Parameters(
        version=VERSION,
        made_by=f"cotenant-lab study predictor --seed {seed} --parameters FILE" + (" --quick" if quick else ""),
        kind=kept,
        seed=seed,
        pairs=len(fitted["space"]),
        features=FEATURES,
        modes={str(mode): ModeParameters(model, law, doubts[mode]) for mode, (model, law) in modes.items()},
    )
    return parameters, held_out


def refitted(parameters: Parameters, outcomes: Sequence[MeasuredOutcome]) -> Parameters:
    """Return the same models with everything that measurements determine fitted to these outcomes alone.

    These are the interference, the part of the correction that is applied, and the width of the intervals.
    """
    fit_outcomes = [outcome for outcome in outcomes if outcome.is_fit]
    constant, by_memory = fit_interference([outcome for outcome in fit_outcomes if _is_split(outcome)])
    modes = {}
    for mode in MODES:
        own = parameters.modes[mode]
        law = own.law
        if not law.sliced:
            law = msgspec.structs.replace(law, interference=constant, interference_memory=by_memory)
        modes[mode] = (own.model, choose_trust(own.model, law, [one for one in fit_outcomes if one.mode == mode]))
    doubts = doubts_of(modes, fit_outcomes)
    fitted = {str(mode): ModeParameters(model, law, doubts[mode]) for mode, (model, law) in modes.items()}
    return msgspec.structs.replace(parameters, modes=fitted)


def choose_law(mode: ServingMode, recorded: Sequence[SimulatedPair], outcomes: Sequence[MeasuredOutcome]) -> SharingLaw:
    """Choose the turn-taking term by recorded programs, and fit the interference of split shares.

    Time slices have neither. Where online work has priority, kernels do not take turns.
    """
    if mode == "time":
        return SharingLaw(sliced=True)
    laws = [SharingLaw(turn=turn) for turn in (TURNS if mode == "mps" else TURNS[:1])]
    best = min(laws, key=lambda law: _rule_error(table_of(recorded, law)))
    constant, by_memory = fit_interference([outcome for outcome in outcomes if _is_split(outcome)])
    return msgspec.structs.replace(best, interference=constant, interference_memory=by_memory)


def fit_interference(outcomes: Sequence[MeasuredOutcome]) -> tuple[float, float]:
    """Fit the slowdown between split shares: a constant, and a part for the bandwidth that the other one uses."""
    if not outcomes:
        return 0.0, 0.0
    online = [outcome.spot.online[0].use for outcome in outcomes]
    columns = np.array([(1.0, use.memory_ppm / 1e6) for use in online])
    slower = np.array([1 / outcome.speed - 1 for outcome in outcomes])
    weights, *_ = np.linalg.lstsq(columns, slower, rcond=None)
    return round(max(float(weights[0]), 0.0), 4), round(max(float(weights[1]), 0.0), 4)


def choose_trust(model: Model, law: SharingLaw, outcomes: Sequence[MeasuredOutcome]) -> SharingLaw:
    """Choose the part of the model's correction by the fit halves of the measurements, each set with equal weight.

    Simulated programs, to which the model was fitted, would favour it.
    """
    laws = [msgspec.structs.replace(law, trust=trust) for trust in TRUSTS]
    tables = [
        table
        for table in _tables(outcomes, law)
        if not np.array_equal(predicted_logs(model, table, laws[0]), predicted_logs(model, table, laws[-1]))
    ]
    if not tables:
        return msgspec.structs.replace(law, trust=_UNJUDGED_TRUST)
    return min(
        laws,
        key=lambda one: statistics.fmean(_log_error(predicted_logs(model, table, one), table) for table in tables),
    )


def doubts_of(
    modes: Mapping[ServingMode, tuple[Model, SharingLaw]], outcomes: Sequence[MeasuredOutcome]
) -> dict[ServingMode, float]:
    """Return the margin with which intervals hold for 90 % of the worst fit half.

    Modes in which tenants run at the same time have one margin, because few measurements are of one of them.
    """
    margins: dict[bool, list[float]] = {True: [_USUAL_DOUBT], False: [_USUAL_DOUBT]}
    for mode, (model, law) in modes.items():
        for table in _tables([outcome for outcome in outcomes if outcome.mode == mode], law):
            predicted = predicted_logs(model, table, law)
            missed = np.abs(predicted[:, 0] - table.truth[:, 0]) / size_of(-predicted[:, 0])
            margins[law.sliced].append(float(np.quantile(missed, COVERAGE)))
    return {mode: round(max(margins[law.sliced]), 4) for mode, (_, law) in modes.items()}


def _tables(outcomes: Sequence[MeasuredOutcome], law: SharingLaw) -> list[Rows]:
    sources = sorted({outcome.source for outcome in outcomes})
    return [table_of([outcome for outcome in outcomes if outcome.source == source], law) for source in sources]


def table_of(pairs: Sequence[SimulatedPair | MeasuredOutcome], law: SharingLaw) -> Rows:
    """Return the features and results of these pairs."""
    rows, added = [], []
    for pair in pairs:
        job, gpu = job_side([pair.job]), gpu_side([pair.spot])
        facts = pair_facts(job, gpu)
        rows.append(features(job, gpu, facts, rule(job, gpu, facts, law))[:, 0, 0])
        slower = interference(job, gpu, facts, law)
        added.append((float(slower.speed[0, 0]), float(slower.slowdown[0, 0])))
    truth = np.log([(pair.speed, max(getattr(pair, "slowdown", 1.0), 1.0)) for pair in pairs])
    return Rows(np.array(rows), truth, np.array(added))


def predicted_logs(model: Model, table: Rows, law: SharingLaw) -> Any:
    """Return the predicted logarithms of speed and slowdown."""
    return answers(model, table.rows, law) + table.interference


def _is_split(outcome: MeasuredOutcome) -> bool:
    return outcome.mode == "mps" and len(outcome.others) == 1 and bool(outcome.spot.online[0].use.memory_ppm)


def _rule_error(table: Rows) -> float:
    return _log_error(table.rows[:, -2:].astype(np.float64), table)


def _log_error(predicted: Any, table: Rows) -> float:
    errors = np.abs(predicted[:, 0] - table.truth[:, 0])
    return float(np.median(errors) + _WEIGHT_OF_MEAN * np.mean(errors))


def _play_all(
    streams: dict[str, Timeline], seed: int, workers: int, fewer: int, progress: Progress
) -> tuple[DeviceRun, DeviceRun, DeviceRun]:
    """Return pairs to fit, and held-out ones: other synthetic programs, and recorded ones."""
    sizes = [count // fewer for count in (_FITTED, _HELD_OUT, _RECORDED)]
    cases = []
    for mode in MODES:
        cases += [PairCase(mode, number, seed) for number in range(sizes[0] + sizes[1])]
        cases += [PairCase(mode, number, seed, streams) for number in range(sizes[2])]
    played: list[SimulatedPair] = []
    with mapping(workers, _CHUNK) as spread:
        for pair in spread(play, cases):
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


def _on_the_model(
    mode: ServingMode, programs: str, table: Rows, models: Mapping[str, Model], law: SharingLaw
) -> list[HeldOutErrors]:
    """Return the errors of every kind of model, each with all of its correction."""
    predicted = {RULE: table.rows[:, -2:], **{name: answers(model, table.rows, law) for name, model in models.items()}}
    return [
        HeldOutErrors(
            mode=mode,
            of=of,
            programs=programs,
            models={name: _errors(answer[:, index], table.truth[:, index]) for name, answer in predicted.items()},
        )
        for index, of in enumerate(("speed", "slowdown"))
    ]


def _errors(predicted: Any, truth: Any) -> ErrorSummary:
    return errors_of(
        {f"case {index}": float(error) for index, error in enumerate(np.abs(np.exp(predicted - truth) - 1))}
    )
