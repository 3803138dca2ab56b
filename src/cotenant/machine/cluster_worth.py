"""What is each kind of job worth on each kind of GPU? Foretold once for each pair, corrected by what was seen since."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.use import TaskUse
from cotenant.machine.cluster_kinds import GpuKind, JobKind, UseKey
from cotenant.policy.predict.speed import SpeedPredictor, Speeds
from cotenant.policy.predict.speed_facts import Spot

_CELLS_LIMIT: Final = 32 << 20
"""Pairs of which is remembered what was foretold; beyond that all are forgotten."""
_STEPS: Final = 4096
"""Worth is told apart in so many steps, so that it is the same however pairs were put together to be foretold."""

Array: TypeAlias = Any
_Place: TypeAlias = tuple[tuple[UseKey, ...], int]


class Table(NamedTuple):
    """A row for each kind of job, a column for each kind of GPU."""

    possible: Array
    """bool: no hard constraint is against it."""
    worth: Array
    """float32: the speed that is foretold; 0: unsafe or impossible."""
    slowdown: Array
    """float32: of the online work there, as foretold."""


class Worth:
    """Answers for tables of pairs, and remembers them."""

    def __init__(self, learned: Iterable[tuple[str, str, int, int]] = ()) -> None:
        self.predictor = SpeedPredictor(learned)
        self._forget()

    def _forget(self) -> None:
        self._rows: dict[TaskUse | None, int] = {}
        self._columns: dict[_Place, int] = {}
        self._known = np.zeros((0, 0), bool)
        self._tables = np.zeros((4, 0, 0), np.float32)

    def table(self, jobs: Sequence[JobKind], gpus: Sequence[GpuKind], limit_ppm: int) -> Table:
        """What is foretold for each of these kinds of jobs on each of these kinds of GPUs."""
        raw = self._raw(jobs, gpus)
        speeds = self.predictor.corrected(raw, [kind.profile for kind in jobs], [kind.beside for kind in gpus])
        possible = _possible(jobs, gpus)
        safe = speeds.slowdown <= 1 + limit_ppm / WHOLE_PPM
        worth = np.rint(speeds.point * _STEPS) / _STEPS
        return Table(possible, np.where(possible & safe, worth, 0).astype(np.float32), speeds.slowdown)

    def foretold(self, job: JobKind, gpu: GpuKind) -> float:
        """The speed, before anything was learned."""
        row, column = self._rows.get(job.use), self._columns.get((gpu.online, gpu.offer_ppm))
        if row is not None and column is not None and self._known[row, column]:
            return float(self._tables[0, row, column])
        return float(self._raw([job], [gpu]).point[0, 0])

    def _raw(self, jobs: Sequence[JobKind], gpus: Sequence[GpuKind]) -> Speeds:
        if len(self._rows) * len(self._columns) > _CELLS_LIMIT:
            self._forget()
        rows = [self._rows.setdefault(kind.use, len(self._rows)) for kind in jobs]
        columns = [self._columns.setdefault((kind.online, kind.offer_ppm), len(self._columns)) for kind in gpus]
        self._grow()
        where = np.ix_(rows, columns)
        unknown = ~self._known[where]
        if unknown.any():
            rough = np.flatnonzero(unknown.any(axis=1))
            across = np.flatnonzero(unknown.any(axis=0))
            given = [jobs[at].use for at in rough]
            spots = [Spot(gpus[at].spot_online, gpus[at].offer_ppm) for at in across]
            block = np.ix_([rows[at] for at in rough], [columns[at] for at in across])
            for table, found in zip(self._tables, self.predictor.worth(given, spots), strict=True):
                table[block] = found
            self._known[block] = True
        return Speeds(*(table[where] for table in self._tables))

    def _grow(self) -> None:
        rows, columns = self._known.shape
        if len(self._rows) <= rows and len(self._columns) <= columns:
            return
        wide = (_room(len(self._rows), rows), _room(len(self._columns), columns))
        known = np.zeros(wide, bool)
        known[:rows, :columns] = self._known
        tables = np.zeros((4, *wide), np.float32)
        tables[:, :rows, :columns] = self._tables
        self._known, self._tables = known, tables


def _room(wanted: int, there: int) -> int:
    return there if wanted <= there else max(16, 1 << (wanted - 1).bit_length())


def _possible(jobs: Sequence[JobKind], gpus: Sequence[GpuKind]) -> Array:
    free = np.array([kind.free_bytes for kind in gpus], np.int64)
    offer = np.array([kind.offer_ppm for kind in gpus], np.int64)
    memory = np.array([kind.memory_bytes for kind in jobs], np.int64)
    least = np.array([kind.least_ppm for kind in jobs], np.int64)
    possible = (memory[:, None] <= free) & (least[:, None] <= offer) & (offer > 0)
    types = np.array([kind.type for kind in gpus])
    fits: dict[tuple[str, ...], Array] = {}
    for row, kind in enumerate(jobs):
        if kind.types:
            if kind.types not in fits:
                fits[kind.types] = np.isin(types, kind.types)
            possible[row] &= fits[kind.types]
        if kind.avoid:
            possible[row] &= [not any(name in gpu.named for name in kind.avoid) for gpu in gpus]
    return possible
