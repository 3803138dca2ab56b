"""Weight of each kind of job on each kind of GPU: predicted once per pair, and corrected by measured speeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from cotenant.cluster.model.cluster import OnlineUse
from cotenant.cluster.state.kinds import GpuKind, JobKind, UseKey, co_runner_key
from cotenant.predict.speed import SpeedPredictor, Speeds
from cotenant.predict.speed_features import Spot
from cotenant.predict.usage import TaskUse
from cotenant.units.share import WHOLE_PPM

_CELLS_LIMIT: Final = 8 << 20
"""Number of pairs beyond which the cached predictions are dropped."""
_STEPS: Final = 4096
"""Weights are rounded to this many steps, so that they do not depend on the batches in which pairs were predicted."""

_MIN_WEIGHT: Final = 1 / _STEPS
_ANY_NAME: Final = "online"
"""Name of an online tenant where names do not matter."""

Array: TypeAlias = Any
_Spot: TypeAlias = tuple[tuple[UseKey, ...], int]
"""Use of the online tenants of a GPU, and its offer."""


class WeightTable(NamedTuple):
    """A row for each kind of job, a column for each kind of GPU."""

    possible: Array
    """bool: whether no hard constraint excludes the pair."""
    weight: Array
    """float32: predicted speed; 0: unsafe or impossible."""
    slowdown: Array
    """float32: predicted slowdown of the online work."""


class PairWeights:
    """Computes and caches tables of pair weights."""

    def __init__(self, learned: Iterable[tuple[str, str, int, int]] = ()) -> None:
        self.predictor = SpeedPredictor(learned)
        self._forget()

    def _forget(self) -> None:
        self._rows: dict[TaskUse | None, int] = {}
        self._columns: dict[_Spot, int] = {}
        self._is_predicted = np.zeros((0, 0), bool)
        self._point = np.zeros((0, 0), np.float32)
        self._low = np.zeros((0, 0), np.float32)
        self._slowdown = np.zeros((0, 0), np.float32)

    def table(self, jobs: Sequence[JobKind], gpus: Sequence[GpuKind], limit_ppm: int) -> WeightTable:
        """Return the weights of these kinds of jobs on these kinds of GPUs.

        Jobs with the same use and profile are predicted once, and so are GPUs that differ in memory only. Where
        the use of one side is unknown, the worst case is assumed; the pair then gets a low weight and does not
        count as unsafe, because otherwise nothing would ever be learned about it, and the node protects its
        online work. After the first measured speed of such a pair, the correction replaces the worst case.
        """
        profiles: dict[tuple[TaskUse | None, str], int] = {}
        row = [profiles.setdefault((kind.use, kind.profile), len(profiles)) for kind in jobs]
        spots: dict[_Spot, int] = {}
        column = [spots.setdefault((kind.online, kind.offer_ppm), len(spots)) for kind in gpus]
        point, low, slowdown = self._predict([use for use, _ in profiles], list(spots))
        is_sure = _is_known([use for use, _ in profiles])[:, None] & _are_known(list(spots))
        co_runner_sets = [co_runner_key(online) for online, _ in spots]
        names = [profile for _, profile in profiles]
        corrected = self.predictor.corrected(Speeds(point, low, slowdown, slowdown), names, co_runner_sets)
        # A measured speed replaces the worst case; its lower bound is not applied in addition.
        is_reported = is_sure if is_sure.all() else is_sure | self.predictor.has_measured(names, co_runner_sets)
        weight = np.clip(np.where(is_reported, corrected.point, corrected.low), _MIN_WEIGHT, 1.0)
        weight = np.rint(weight * _STEPS) / np.float32(_STEPS)
        is_safe = ~is_sure | (slowdown <= 1 + limit_ppm / WHOLE_PPM)
        weight = np.where(is_safe, weight, 0).astype(np.float32)
        possible = possible_pairs(jobs, gpus)
        cells = np.ix_(row, column)
        return WeightTable(possible, weight[cells] * possible, slowdown[cells])

    def predicted(self, job: JobKind, gpu: GpuKind) -> float:
        """Return the predicted speed without corrections."""
        spot = (gpu.online, gpu.offer_ppm)
        row, column = self._rows.get(job.use), self._columns.get(spot)
        if row is not None and column is not None and self._is_predicted[row, column]:
            return float(self._point[row, column])
        return float(self._predict([job.use], [spot])[0][0, 0])

    def _predict(self, uses: Sequence[TaskUse | None], spots: Sequence[_Spot]) -> tuple[Array, Array, Array]:
        if len(self._rows) * len(self._columns) > _CELLS_LIMIT:
            self._forget()
        rows = [self._rows.setdefault(use, len(self._rows)) for use in uses]
        columns = [self._columns.setdefault(spot, len(self._columns)) for spot in spots]
        self._grow()
        cells = np.ix_(rows, columns)
        unknown = ~self._is_predicted[cells]
        if unknown.any():
            missing_rows = np.flatnonzero(unknown.any(axis=1)).tolist()
            missing_columns = np.flatnonzero(unknown.any(axis=0)).tolist()
            predicted = self.predictor.predict(
                [uses[index] for index in missing_rows],
                [Spot(_tenants(spots[index][0]), spots[index][1]) for index in missing_columns],
            )
            block = np.ix_([rows[index] for index in missing_rows], [columns[index] for index in missing_columns])
            self._point[block], self._low[block], self._slowdown[block] = (
                predicted.point,
                predicted.low,
                predicted.slowdown,
            )
            self._is_predicted[block] = True
        return self._point[cells], self._low[cells], self._slowdown[cells]

    def _grow(self) -> None:
        rows, columns = self._is_predicted.shape
        if len(self._rows) <= rows and len(self._columns) <= columns:
            return
        capacity = (_grown(len(self._rows), rows), _grown(len(self._columns), columns))
        for name in ("_is_predicted", "_point", "_low", "_slowdown"):
            old = getattr(self, name)
            wide = np.zeros(capacity, old.dtype)
            wide[:rows, :columns] = old
            setattr(self, name, wide)


def _is_known(uses: Sequence[TaskUse | None]) -> Array:
    return np.array([use is not None and use.duty_ppm > 0 for use in uses], bool)


def _are_known(spots: Sequence[_Spot]) -> Array:
    return np.array([all(use[0] > 0 for use in online) for online, _ in spots], bool)


def _tenants(online: tuple[UseKey, ...]) -> tuple[OnlineUse, ...]:
    return tuple(OnlineUse(_ANY_NAME, TaskUse(*use)) for use in online)


def _grown(needed: int, capacity: int) -> int:
    return capacity if needed <= capacity else max(16, 1 << (needed - 1).bit_length())


def possible_pairs(jobs: Sequence[JobKind], gpus: Sequence[GpuKind]) -> Array:
    """Return a bool table, a row for each kind of job: whether no hard constraint excludes the pair."""
    free = np.array([kind.free_bytes for kind in gpus], np.int64)
    offer = np.array([kind.offer_ppm for kind in gpus], np.int64)
    memory = np.array([kind.memory_bytes for kind in jobs], np.int64)
    min_share = np.array([kind.min_share_ppm for kind in jobs], np.int64)
    possible = (memory[:, None] <= free) & (min_share[:, None] <= offer) & (offer > 0)
    if any(kind.jobs for kind in gpus):  # a job of unknown memory shares a GPU with no other
        possible &= (memory > 0)[:, None] | np.array([not kind.jobs for kind in gpus])
    types = np.array([kind.type for kind in gpus])
    fits: dict[tuple[str, ...], Array] = {}
    for row, kind in enumerate(jobs):
        if kind.types:
            if kind.types not in fits:
                fits[kind.types] = np.isin(types, kind.types)
            possible[row] &= fits[kind.types]
        if kind.pool:
            possible[row] &= [kind.pool in gpu.pools for gpu in gpus]
        if kind.avoid:
            possible[row] &= [not any(name in gpu.named for name in kind.avoid) for gpu in gpus]
    return possible
