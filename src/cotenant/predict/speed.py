"""Speed of an offline job next to the online work of a GPU, and the slowdown of that online work.

Speeds are relative to the job alone on the whole GPU; slowdowns are time together over time alone. `predict` computes
tables for many jobs on many GPUs from the use of both alone and the share, and depends on nothing else, so that results
can be cached. Measured speeds correct them (`learn`, `corrected`) for all jobs of a profile, and more specifically next
to one set of co-running tenants.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from cotenant.cluster.model.cluster import OnlineUse
from cotenant.predict.speed_features import GpuSide, JobSide, Spot, gpu_side, job_side, pair_facts
from cotenant.predict.speed_model import answers, features, interference, rule
from cotenant.predict.speed_parameters import ModeParameters, Parameters, load_parameters
from cotenant.predict.usage import TaskUse
from cotenant.units.estimate import COVERAGE, Estimate

LEARNED_LIMIT: Final = 20_000
"""Number of profiles, and of profiles with co-runners, of which corrections are kept; the oldest are dropped."""
_PATIENCE: Final = 2
"""Weight of the prediction, in measured speeds."""
_FORGETS: Final = 20
"""Number of measured speeds after which older ones fade."""
_MAX_SHIFT: Final = 3.0
"""Largest correction in logarithms: a factor of twenty."""
_MIN_SPEED: Final = 0.005
_PPM: Final = 1_000_000
_UNKNOWN: Final = 2.0
"""Factor on the uncertainty where the use of the job or of an online tenant is unknown."""
_SURER: Final = 0.4
"""Part of the initial uncertainty that remains after many measured speeds."""
_MIN_SIZE: Final = 0.05
_CELLS: Final = 1 << 13
"""Pairs that are computed at a time, to stay in the processor cache."""
_WHOLE: Final = 1_000_000
_MAX_GROUPED: Final = 6
"""Number of neighbours up to which every group of them is predicted."""
WORST: Final = tuple(
    TaskUse(_WHOLE, ((width, _WHOLE),), memory_ppm, kernel_ns, kernel_ns, 20 * kernel_ns, 20 * kernel_ns, _WHOLE)
    for width in (_WHOLE // 2, _WHOLE)
    for memory_ppm in (0, _WHOLE)
    for kernel_ns in (10_000, 200_000, 2_000_000)
)
"""Candidates for a job of unknown use: the slowest and the most harmful are assumed on each GPU."""


class Speeds(NamedTuple):
    """Tables of float32, jobs by GPUs."""

    point: Any
    """Speed of the job relative to the whole GPU alone."""
    low: Any
    """Lower bound of the speed; `point` is the median."""
    slowdown: Any
    """Slowdown of the online work next to the job; 1: none."""
    slowdown_high: Any
    """Upper bound of the slowdown."""


class _Correction(NamedTuple):
    times: int
    shift: float
    """Mean of the log errors, later ones with more weight."""


class SpeedPredictor:
    """Predictions, and corrections learned from measured speeds. Uses no clock and no random numbers."""

    def __init__(
        self,
        learned: Iterable[tuple[str, str, int, int]] = (),
        mode: str = "space",
        parameters: Parameters | None = None,
    ) -> None:
        """Begin with the corrections `learned` by another predictor, for the sharing mode `mode`."""
        self._learned = {
            (profile, co_runners): _Correction(times, shift / _PPM) for profile, co_runners, times, shift in learned
        }
        self._mode = (parameters or load_parameters()).modes[mode]

    def predict(self, jobs: Sequence[TaskUse | None], gpus: Sequence[Spot]) -> Speeds:
        """Return predictions without corrections; None: a job of unknown use, for which the worst case is assumed."""
        speeds = Speeds(*(np.empty((len(jobs), len(gpus)), dtype=np.float32) for _ in Speeds._fields))
        known_rows = [row for row, job in enumerate(jobs) if job is not None]
        panel = WORST if len(known_rows) < len(jobs) else ()
        offline = job_side([*(jobs[row] for row in known_rows), *panel])
        online = gpu_side(gpus)
        block_size = max(1, _CELLS // max(len(known_rows) + len(panel), 1))
        for first in range(0, len(gpus), block_size):
            block = slice(first, first + block_size)
            speed, slowdown = self._logs(offline, GpuSide(*(column[block] for column in online)))
            uncertainty = np.where(online.is_known[block] > 0, 1.0, _UNKNOWN)[None, :]
            self._fill(speeds, known_rows, block, (speed[: len(known_rows)], slowdown[: len(known_rows)], uncertainty))
            if panel:
                unknown_rows = [row for row, job in enumerate(jobs) if job is None]
                worst = (
                    speed[len(known_rows) :].min(axis=0, keepdims=True),
                    slowdown[len(known_rows) :].max(axis=0, keepdims=True),
                    np.full_like(uncertainty, _UNKNOWN),
                )
                self._fill(speeds, unknown_rows, block, worst)
        return speeds

    def _logs(self, offline: JobSide, online: GpuSide) -> tuple[Any, Any]:
        law = self._mode.law
        facts = pair_facts(offline, online)
        tables = features(offline, online, facts, rule(offline, online, facts, law))
        rows = tables.reshape(len(tables), -1).T
        both = answers(self._mode.model, rows, law).reshape(*tables.shape[1:], 2)
        alone = online.presence[None, :] <= 0
        slower = interference(offline, online, facts, law)
        return both[:, :, 0] + slower.speed, np.where(alone, 0.0, both[:, :, 1] + slower.slowdown)

    def slowdowns(self, uses: Sequence[TaskUse | None]) -> tuple[Estimate, ...]:
        """Return for each of several tenants of a GPU its time with all others over that alone."""
        predicted = self.predict(uses, _others_of(uses)).point
        uncertainty = _UNKNOWN if None in uses or TaskUse() in uses else 1.0
        return tuple(self.interval(float(predicted[index, index]), uncertainty).inverse() for index in range(len(uses)))

    def most_slowdowns(self, uses: Sequence[TaskUse | None]) -> list[float]:
        """Return for each of several tenants of a GPU its largest slowdown next to any group of the others.

        It never falls with another tenant. That of `slowdowns` may, by a few percent: some features are means over the
        neighbours, and the fitted model is not monotone.
        """
        groups = {index: _groups_of_others(index, len(uses)) for index in range(len(uses))}
        column = {group: number for number, group in enumerate(dict.fromkeys(itertools.chain(*groups.values())))}
        known = [OnlineUse("", TaskUse() if use is None else use) for use in uses]
        spots = [Spot(tuple(known[other] for other in group), _WHOLE) for group in column]
        predicted = self.predict(uses, spots).point
        return [
            1 / float(predicted[index, [column[group] for group in groups[index]]].min()) for index in range(len(uses))
        ]

    def interferences(self, uses: Sequence[TaskUse | None]) -> list[float]:
        """Return for each of several tenants its slowdown through caches and memory alone."""
        offline, online = job_side(uses), gpu_side(_others_of(uses))
        logs = interference(offline, online, pair_facts(offline, online), self._mode.law).speed
        return [math.exp(-float(logs[index, index])) for index in range(len(uses))]

    def interval(self, speed: float, uncertainty: float = 1.0) -> Estimate:
        """Return the interval around a predicted speed."""
        margin = uncertainty * self._mode.doubt * float(size_of(-math.log(speed)))
        low, high = speed * math.exp(-margin), min(speed * math.exp(margin), 1.0)
        return Estimate(max(low, _MIN_SPEED), speed, max(high, speed), COVERAGE)

    def _fill(self, speeds: Speeds, rows: Sequence[int], columns: slice, values: tuple[Any, Any, Any]) -> None:
        cells = (np.array(rows, dtype=np.intp)[:, None], np.arange(speeds.point.shape[1])[None, columns])
        for table, column in zip(speeds, speeds_of(self._mode, *values), strict=True):
            table[cells] = column

    def learn(self, profile: str, co_runners: str, predicted: float, measured: float) -> None:
        """Learn that a job of this profile had this speed next to these co-runners, where `predict` gave `predicted`.

        `co_runners` is a key that groups co-running tenants, such as that of `co_runner_key`.
        """
        if predicted <= 0 or measured <= 0:
            return
        error = _clamp(math.log(max(measured, _MIN_SPEED) / max(predicted, _MIN_SPEED)))
        self._add_error(profile, "", error)
        if co_runners:
            self._add_error(profile, co_runners, error)
        while len(self._learned) > LEARNED_LIMIT:
            del self._learned[next(iter(self._learned))]

    def corrected(self, raw: Speeds, profiles: Sequence[str], co_runner_sets: Sequence[str]) -> Speeds:
        """Return corrected predictions: a row for each profile, a column for each set of co-runners.

        The prediction keeps some weight, so that a correction never exceeds what was measured. For co-runners
        that are new to the profile, the correction of the profile applies.
        """
        if not self._learned:
            return raw
        shift, times = self._corrections(profiles, co_runner_sets)
        remaining = _SURER + (1 - _SURER) / np.sqrt(1 + times / _PATIENCE)
        point = np.clip(raw.point * np.exp(shift), _MIN_SPEED, 1.0)
        low = np.maximum(point * (raw.low / raw.point) ** remaining, _MIN_SPEED)
        return Speeds(point, np.minimum(low, point), raw.slowdown, raw.slowdown_high)

    def has_measured(self, profiles: Sequence[str], co_runner_sets: Sequence[str]) -> Any:
        """Return a bool table: whether a speed of this profile (row) was measured next to these co-runners (column)."""
        rows = {profile: row for row, profile in enumerate(dict.fromkeys(profiles))}
        columns = {co_runners: column for column, co_runners in enumerate(dict.fromkeys(co_runner_sets))}
        measured = np.zeros((len(rows), len(columns)), dtype=bool)
        for profile, co_runners in self._learned:
            if profile in rows and co_runners in columns:
                measured[rows[profile], columns[co_runners]] = True
        return measured[
            np.ix_([rows[profile] for profile in profiles], [columns[co_runners] for co_runners in co_runner_sets])
        ]

    def _corrections(self, profiles: Sequence[str], co_runner_sets: Sequence[str]) -> tuple[Any, Any]:
        """Return corrections and numbers of measurements: a row for each profile, a column for each set of co-runners.

        Iterates over the corrections rather than over the requested pairs, because their number is bounded.
        """
        rows: dict[str, int] = {}
        columns: dict[str, int] = {}
        row = [rows.setdefault(profile, len(rows)) for profile in profiles]
        column = [columns.setdefault(co_runners, len(columns)) for co_runners in co_runner_sets]
        shift = np.zeros((len(rows), len(columns)), dtype=np.float32)
        times = np.zeros((len(rows), len(columns)), dtype=np.float32)
        by_profile = {profile: self._learned[profile, ""] for profile in rows if (profile, "") in self._learned}
        for profile, correction in by_profile.items():
            shift[rows[profile]], times[rows[profile]] = _blend(0.0, correction), correction.times
        cells = [
            (
                rows[profile],
                columns[co_runners],
                _blend(_blend(0.0, by_profile.get(profile, correction)), correction),
                correction.times,
            )
            for (profile, co_runners), correction in self._learned.items()
            if co_runners and co_runners in columns and profile in rows
        ]
        if cells:
            row_numbers, column_numbers, shifts, counts = (list(values) for values in zip(*cells, strict=True))
            shift[row_numbers, column_numbers] = shifts
            times[row_numbers, column_numbers] += counts
        return shift[row][:, column], times[row][:, column]

    def learned(self) -> tuple[tuple[str, str, int, int], ...]:
        """Return all corrections, the most recent last."""
        return tuple(
            (profile, co_runners, correction.times, round(correction.shift * _PPM))
            for (profile, co_runners), correction in self._learned.items()
        )

    def _add_error(self, profile: str, co_runners: str, error: float) -> None:
        before = self._learned.pop((profile, co_runners), _Correction(0, 0.0))
        times = min(before.times + 1, _FORGETS)
        self._learned[profile, co_runners] = _Correction(times, round(before.shift + (error - before.shift) / times, 6))


def _groups_of_others(index: int, count: int) -> list[tuple[int, ...]]:
    """Return all groups of the other tenants; of many, only single ones and all, because there are 2**n groups."""
    others = [other for other in range(count) if other != index]
    sizes = range(1, len(others) + 1) if len(others) <= _MAX_GROUPED else (1, len(others))
    return [group for size in sizes for group in itertools.combinations(others, size)]


def _others_of(uses: Sequence[TaskUse | None]) -> list[Spot]:
    """Return the GPU of several tenants as each of them finds it."""
    known = [OnlineUse("", TaskUse() if use is None else use) for use in uses]
    return [Spot((*known[:index], *known[index + 1 :]), _WHOLE) for index in range(len(known))]


def speeds_of(mode: ModeParameters, speed: Any, slowdown: Any, uncertainty: Any = 1.0) -> Speeds:
    """Return speeds from a model's logarithms, with `uncertainty` times the usual uncertainty."""
    low = speed - uncertainty * mode.doubt * size_of(-speed)
    high = slowdown + uncertainty * mode.doubt * np.where(slowdown > 0, size_of(slowdown), 0.0)
    least = np.maximum(np.exp(low), _MIN_SPEED)
    return Speeds(np.maximum(np.exp(speed), _MIN_SPEED), least, np.exp(slowdown), np.exp(high))


def size_of(slower: Any) -> Any:
    """Return how much slowdown there is to be wrong about, from its logarithm: 0.05 for none, 1.05 for much."""
    return 1 - np.exp(-slower) + _MIN_SIZE


def co_runner_key(online: Sequence[OnlineUse]) -> str:
    """Return the names of the services as a key, in any order."""
    return "+".join(sorted(use.name for use in online))


def _blend(shift: float, measured: _Correction) -> float:
    """Return the weighted mean of a prior correction and the measured one."""
    return (_PATIENCE * shift + measured.times * measured.shift) / (_PATIENCE + measured.times)


def _clamp(shift: float) -> float:
    return min(max(shift, -_MAX_SHIFT), _MAX_SHIFT)
