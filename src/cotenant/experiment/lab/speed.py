"""Can the cluster's speeds be foretold? Models fitted to pairs on the software GPU, judged by what others measured.

Three kinds of model are fitted to made-up programs. Which kind is kept is decided by pairs on the software GPU that no
fit has seen: other made-up programs, and kernels recorded on a V100. All kinds are then judged by Gavel's training
pairs and DISB's clients, which no fit and no choice has seen, beside the rule alone and utilisation that adds up.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from cotenant.domain.estimate import COVERAGE
from cotenant.domain.timeline import Timeline
from cotenant.experiment.lab.judge import Errors, errors_of, relative
from cotenant.experiment.lab.servers import Measured
from cotenant.experiment.lab.speed_fit import FITS
from cotenant.experiment.lab.speed_measured import (
    AGAIN,
    DISB,
    GAVEL,
    Outcome,
    differences,
    disb_outcomes,
    gavel_outcomes,
)
from cotenant.experiment.lab.speed_pairs import WAYS, Pair, Question, Way, play
from cotenant.experiment.lab.workers import mapping
from cotenant.format.measured.gavel import Pairs
from cotenant.policy.predict.speed import SpeedPredictor, Speeds, size_of, speeds_of
from cotenant.policy.predict.speed_facts import gpu_side, job_side, pair_facts
from cotenant.policy.predict.speed_model import FEATURES, Model, answers, features, rule
from cotenant.policy.predict.speed_parameters import VERSION, Parameters, WayParameters

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
"""A quick run plays one in so many."""
_CHUNK: Final = 20
_SIDED: Final = 1 - (1 - COVERAGE) / 2
"""An interval of 90 % has a twentieth of the outcomes on each side."""


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """What the data directory holds, read."""

    streams: dict[str, Timeline]
    pairs: Pairs
    again: Pairs
    servers: list[Measured]


class HeldOut(msgspec.Struct, frozen=True, kw_only=True):
    """Errors on pairs of the software GPU that no fit has seen."""

    way: str
    of: str
    """The job's speed, or the online slowdown."""
    programs: str
    models: dict[str, Errors]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """Errors on what others measured."""

    name: str
    where: str
    of: str
    kept: Errors
    """Of the model that is kept."""
    models: dict[str, Errors]
    baselines: dict[str, Errors]
    seen: Errors | None
    """Of the model that is kept, each program's earlier outcomes having corrected it."""
    within: float
    """Part of the outcomes on the good side of the bound that should hold in 95 of 100."""
    met: dict[str, bool]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found: a function of the measurements and the seed."""

    lab: str
    quick: bool
    seed: int
    fitted_pairs: int
    kept: str
    held_out: list[HeldOut]
    judged: list[Line]
    met: dict[str, bool]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What plots are drawn from: foretold and measured, by name of the judgement."""

    shown: dict[str, list[tuple[float, float]]]


class _Rows(msgspec.Struct, frozen=True):
    rows: Any
    """Features."""
    truth: Any
    """Logarithms of speed and slowdown."""


def judge_speed(
    measured: Measurements, seed: int, workers: int, progress: Callable[[str, int, int], None], *, quick: bool
) -> tuple[Report, Evidence, Parameters]:
    """Plays, fits, chooses, judges."""
    fewer = _QUICK if quick else 1
    fitted, held, recorded = _play_all(measured.streams, seed, workers, fewer, progress)
    models: dict[Way, dict[str, Model]] = {}
    for done, way in enumerate(WAYS):
        table = _table(fitted[way], way)
        errors = table.truth - table.rows[:, -2:]
        models[way] = {name: fit(table.rows, errors, seed) for name, fit in FITS.items()}
        progress("fits", done + 1, len(WAYS))
    held_out = []
    for way in WAYS:
        for programs, pairs in (("made up", held[way]), ("recorded", recorded[way])):
            held_out += _on_the_model(way, programs, _table(pairs, way), models[way])
    kept = _best(held_out)
    parameters = Parameters(
        version=VERSION,
        made_by=f"cotenant lab predictor --seed {seed} --parameters FILE" + (" --quick" if quick else ""),
        kind=kept,
        seed=seed,
        pairs=len(fitted["space"]),
        features=FEATURES,
        ways={way: _with_doubt(models[way][kept], _table([*held[way], *recorded[way]], way)) for way in WAYS},
    )
    gavel, again, disb = (
        gavel_outcomes(measured.pairs),
        gavel_outcomes(measured.again),
        disb_outcomes(measured.servers, measured.streams),
    )
    judged: list[Line] = []
    shown: dict[str, list[tuple[float, float]]] = {}
    for name, outcomes in ((GAVEL, gavel), (AGAIN, again), (DISB, disb)):
        twice = differences(outcomes, again if name == GAVEL else gavel if name == AGAIN else [])
        lines, shown[name] = _judge(name, outcomes, models, parameters, twice)
        judged += lines
        progress("judged", len(shown), 3)
    met = {f"{one.name}, {one.of}: {what}": met for one in judged for what, met in one.met.items()}
    report = Report(
        lab="predictor",
        quick=quick,
        seed=seed,
        fitted_pairs=parameters.pairs,
        kept=kept,
        held_out=held_out,
        judged=judged,
        met=met,
    )
    return report, Evidence(shown=shown), parameters


Played = Mapping[Way, Sequence[Pair]]


def _play_all(
    streams: dict[str, Timeline], seed: int, workers: int, fewer: int, progress: Callable[[str, int, int], None]
) -> tuple[Played, Played, Played]:
    """To fit; and held out: other made-up programs, and recorded ones."""
    sizes = [count // fewer for count in (_FITTED, _HELD_OUT, _RECORDED)]
    asked = []
    for way in WAYS:
        asked += [Question(way, number, seed) for number in range(sizes[0] + sizes[1])]
        asked += [Question(way, number, seed, streams) for number in range(sizes[2])]
    played: list[Pair] = []
    with mapping(workers) as spread:
        many: Iterable[Pair] = spread(play, asked, chunksize=_CHUNK) if workers > 1 else spread(play, asked)
        for pair in many:
            played.append(pair)
            progress("pairs", len(played), len(asked))
    fitted: dict[Way, list[Pair]] = {}
    held: dict[Way, list[Pair]] = {}
    recorded: dict[Way, list[Pair]] = {}
    for place, way in enumerate(WAYS):
        own = played[place * sum(sizes) : (place + 1) * sum(sizes)]
        fitted[way], held[way], recorded[way] = own[: sizes[0]], own[sizes[0] : -sizes[2]], own[-sizes[2] :]
    return fitted, held, recorded


def _table(pairs: Sequence[Pair | Outcome], way: Way) -> _Rows:
    rows = []
    for pair in pairs:
        job, gpu = job_side([pair.job]), gpu_side([pair.spot])
        facts = pair_facts(job, gpu)
        rows.append(features(job, gpu, facts, rule(job, gpu, facts, sliced=way == "time"))[:, 0, 0])
    truth = np.log([(pair.speed, max(pair.slowdown, 1.0)) for pair in pairs])
    return _Rows(np.array(rows), truth)


def _on_the_model(way: Way, programs: str, table: _Rows, models: Mapping[str, Model]) -> list[HeldOut]:
    told = {RULE: table.rows[:, -2:], **{name: answers(model, table.rows) for name, model in models.items()}}
    return [
        HeldOut(
            way=way,
            of=of,
            programs=programs,
            models={name: _errors(answer[:, place], table.truth[:, place]) for name, answer in told.items()},
        )
        for place, of in enumerate(("speed", "slowdown"))
    ]


def _best(held_out: Sequence[HeldOut]) -> str:
    """The model of least mean of median errors; the rule is no model."""
    return min(FITS, key=lambda name: statistics.fmean(one.models[name].median for one in held_out))


def _with_doubt(model: Model, table: _Rows) -> WayParameters:
    """So that the bound holds for 95 of 100 of the pairs that no fit has seen."""
    told = answers(model, table.rows)
    missed = (told[:, 0] - table.truth[:, 0]) / size_of(-told[:, 0])
    beyond = (table.truth[:, 1] - told[:, 1]) / size_of(told[:, 1])
    doubts = [float(np.quantile(np.maximum(one, 0.0), _SIDED)) for one in (missed, beyond)]
    return WayParameters(model, (round(doubts[0], 4), round(doubts[1], 4)))


def _judge(
    name: str,
    outcomes: Sequence[Outcome],
    models: Mapping[Way, Mapping[str, Model]],
    parameters: Parameters,
    twice: Mapping[str, tuple[float, float]],
) -> tuple[list[Line], list[tuple[float, float]]]:
    way = outcomes[0].way
    table = _table(outcomes, way)
    told = {kind: answers(model, table.rows) for kind, model in models[way].items()}
    kept = told[parameters.kind]
    speeds = speeds_of(parameters.ways[way], kept[:, 0], kept[:, 1])
    adds_up = np.log([one.adds_up for one in outcomes])
    found = []
    for place, of in enumerate(("speed", "slowdown")):
        some = np.array([of == "speed" or one.slowdown > 0 for one in outcomes])
        truth = table.truth[some, place]
        real = np.exp(truth)
        within = real >= speeds.low[some] if of == "speed" else real <= speeds.slowdown_high[some]
        baselines = {RULE: _errors(table.rows[some, len(FEATURES) - 2 + place], truth)}
        baselines[ADDS_UP] = _errors(adds_up[some] if of == "speed" else -adds_up[some], truth)
        if of == "speed" and twice:
            baselines[TWICE] = errors_of({case: relative(told, seen) for case, (told, seen) in twice.items()})
        errors = _errors(kept[some, place], truth)
        found.append(
            Line(
                name=name,
                where=", ".join(sorted({one.where for one in outcomes})),
                of=of,
                kept=errors,
                models={kind: _errors(answer[some, place], truth) for kind, answer in told.items()},
                baselines=baselines,
                seen=_once_seen(outcomes, speeds, SpeedPredictor((), way, parameters)) if of == "speed" else None,
                within=round(float(np.mean(within)), 4),
                met={
                    f"median at most {MEDIAN:.0%}": errors.median <= MEDIAN,
                    f"p90 at most {P90:.0%}": errors.p90 <= P90,
                    f"better than {ADDS_UP}": errors.median < baselines[ADDS_UP].median,
                },
            )
        )
    points = [(round(float(a), 4), round(one.speed, 4)) for a, one in zip(speeds.point, outcomes, strict=True)]
    return found, points


def _once_seen(outcomes: Sequence[Outcome], speeds: Speeds, predictor: SpeedPredictor) -> Errors:
    """In the order of the file, each outcome correcting what is foretold of the same program after it."""
    errors = {}
    for place, one in enumerate(outcomes):
        raw = Speeds(*(table[place : place + 1, None] for table in speeds))
        told = predictor.corrected(raw, [one.profile], [one.beside])
        errors[one.name] = relative(float(told.point[0, 0]), one.speed)
        predictor.learn(one.profile, one.beside, float(raw.point[0, 0]), one.speed)
    return errors_of(errors)


def _errors(told: Any, truth: Any) -> Errors:
    return errors_of({f"case {place}": float(one) for place, one in enumerate(np.abs(np.exp(told - truth) - 1))})
