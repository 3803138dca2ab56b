"""What is each kind of job worth on each kind of GPU? Foretold once for each pair, corrected by what was seen since."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from cotenant.domain.cluster import OnlineUse
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.use import TaskUse
from cotenant.machine.cluster_kinds import GpuKind, JobKind, UseKey, beside_of
from cotenant.policy.predict.speed import SpeedPredictor, Speeds
from cotenant.policy.predict.speed_facts import Spot

_CELLS_LIMIT: Final = 8 << 20
"""Pairs of which is remembered what was foretold; beyond that all are forgotten."""
_STEPS: Final = 4096
"""Worth is told apart in so many steps, so that it is the same however pairs were put together to be foretold."""

_LEAST: Final = 1 / _STEPS
_SOMEBODY: Final = "online"
"""Whose name does not count."""

Array: TypeAlias = Any
_Spot: TypeAlias = tuple[tuple[UseKey, ...], int]
"""Who is there online, and what is on offer."""


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
        self._columns: dict[_Spot, int] = {}
        self._known = np.zeros((0, 0), bool)
        self._point = np.zeros((0, 0), np.float32)
        self._low = np.zeros((0, 0), np.float32)
        self._slowdown = np.zeros((0, 0), np.float32)

    def table(self, jobs: Sequence[JobKind], gpus: Sequence[GpuKind], limit_ppm: int) -> Table:
        """What is foretold for each of these kinds of jobs on each of these kinds of GPUs.

        Jobs of one profile that differ in what they may have are foretold as one, and so are GPUs that differ in
        memory: the table of these is made first, and then spread out. Where one side is not known, the worst is
        assumed of it; that counts as little worth, not as unsafe, or nobody would ever learn anything of it: what is
        online there is then in the care of its node alone. Once it was seen how such a job does in such company, it
        counts for that, as the lab reports it ("once seen").
        """
        profiles: dict[tuple[TaskUse | None, str], int] = {}
        row = [profiles.setdefault((kind.use, kind.profile), len(profiles)) for kind in jobs]
        spots: dict[_Spot, int] = {}
        column = [spots.setdefault((kind.online, kind.offer_ppm), len(spots)) for kind in gpus]
        point, low, slowdown = self._foretell([use for use, _ in profiles], list(spots))
        is_sure = _is_known([use for use, _ in profiles])[:, None] & _are_known(list(spots))
        besides = [beside_of(online) for online, _ in spots]
        names = [profile for _, profile in profiles]
        told = self.predictor.corrected(Speeds(point, low, slowdown, slowdown), names, besides)
        # What was seen speaks for itself: the worst case, corrected, is not blurred once more.
        is_told = is_sure if is_sure.all() else is_sure | self.predictor.has_seen(names, besides)
        worth = np.clip(np.where(is_told, told.point, told.low), _LEAST, 1.0)
        worth = np.rint(worth * _STEPS) / np.float32(_STEPS)
        is_safe = ~is_sure | (slowdown <= 1 + limit_ppm / WHOLE_PPM)
        worth = np.where(is_safe, worth, 0).astype(np.float32)
        possible = possible_pairs(jobs, gpus)
        where = np.ix_(row, column)
        return Table(possible, worth[where] * possible, slowdown[where])

    def foretold(self, job: JobKind, gpu: GpuKind) -> float:
        """The speed, before anything was learned."""
        spot = (gpu.online, gpu.offer_ppm)
        row, column = self._rows.get(job.use), self._columns.get(spot)
        if row is not None and column is not None and self._known[row, column]:
            return float(self._point[row, column])
        return float(self._foretell([job.use], [spot])[0][0, 0])

    def _foretell(self, uses: Sequence[TaskUse | None], spots: Sequence[_Spot]) -> tuple[Array, Array, Array]:
        if len(self._rows) * len(self._columns) > _CELLS_LIMIT:
            self._forget()
        rows = [self._rows.setdefault(use, len(self._rows)) for use in uses]
        columns = [self._columns.setdefault(spot, len(self._columns)) for spot in spots]
        self._grow()
        where = np.ix_(rows, columns)
        unknown = ~self._known[where]
        if unknown.any():
            down = np.flatnonzero(unknown.any(axis=1)).tolist()
            across = np.flatnonzero(unknown.any(axis=0)).tolist()
            found = self.predictor.worth(
                [uses[at] for at in down], [Spot(_tenants(spots[at][0]), spots[at][1]) for at in across]
            )
            block = np.ix_([rows[at] for at in down], [columns[at] for at in across])
            self._point[block], self._low[block], self._slowdown[block] = found.point, found.low, found.slowdown
            self._known[block] = True
        return self._point[where], self._low[where], self._slowdown[where]

    def _grow(self) -> None:
        rows, columns = self._known.shape
        if len(self._rows) <= rows and len(self._columns) <= columns:
            return
        room = (_room(len(self._rows), rows), _room(len(self._columns), columns))
        for name in ("_known", "_point", "_low", "_slowdown"):
            before = getattr(self, name)
            wide = np.zeros(room, before.dtype)
            wide[:rows, :columns] = before
            setattr(self, name, wide)


def _is_known(uses: Sequence[TaskUse | None]) -> Array:
    return np.array([use is not None and use.duty_ppm > 0 for use in uses], bool)


def _are_known(spots: Sequence[_Spot]) -> Array:
    return np.array([all(use[0] > 0 for use in online) for online, _ in spots], bool)


def _tenants(online: tuple[UseKey, ...]) -> tuple[OnlineUse, ...]:
    return tuple(OnlineUse(_SOMEBODY, TaskUse(*use)) for use in online)


def _room(wanted: int, there: int) -> int:
    return there if wanted <= there else max(16, 1 << (wanted - 1).bit_length())


def possible_pairs(jobs: Sequence[JobKind], gpus: Sequence[GpuKind]) -> Array:
    """bool, a row for each kind of job: no hard constraint is against it."""
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
