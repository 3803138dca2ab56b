"""Upper bound on how many of given requests any schedule of whole runs answers in time: a linear program.

The fluid bounds (`bound`, `arrival_bound`) only add up space-time. This one keeps the instants: runs of a number of
rows on a number of units begin in a time slot and occupy their units in the slots that follow, the rows of a run have
arrived when it begins, and they are due after it ends. The program may start fractions of runs; everything else that a
schedule must satisfy and that can be written as linear constraints on expected values is kept, so its optimum is never
less than the expected number of requests in time of any schedule, including one that knows all arrivals in advance.

Why each constraint holds for every schedule that does not preempt runs and does not know how long a run will take
before it begins. Let y(r, s) be the expected number of runs of kind r (model, rows, units) that begin in slot s. A kind
has several equally long *outcomes* o, each with its probability p(o) and the least time d(o) that a run with this
outcome takes; q(r, s, o) is the expected number of its rows that are in time.

- *Units*: a run that begins in slot s holds its units at the first instant of the slots s + 1 ... s + floor(d / slot).
  The units held at one instant never exceed those of the device.
- *Space-time*: all runs begin and end within the horizon, and the mean time of a run is that of the profile, so the
  sum of y x area never exceeds the units times the horizon (without the part that other programs take). Where
  concurrent runs slow each other down by a factor c, a run takes c times as long, or has the device for itself:
  min(c x units, all units) x time is the least it uses.
- *Rows*: a row in time arrived before its run began, and not earlier than its run's end minus the objective. At most
  min(rows, number of such arrivals) x p(o) x y are in time.
- *Order*: let k(j) be the probability that request j is in time. Rows that begin until the end of slot s are of
  requests that arrived by then; rows of the first j requests are in runs that end soon enough for one of them. Both are
  necessary for a matching of rows to requests.
- *Fairness*: Jain's index of the models' fractions x in time is at least f where sqrt(f n) |x| <= sum of x, a convex
  cone. It is kept by tangents, which every point of the cone satisfies.

Requests outside the measured window are dropped without loss, because they do not count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import coo_array

from cotenant.serve.sim.run_speed import RunSpeeds
from cotenant.units.instant import SECOND_NS
from cotenant_lab.errors import RunFailedError
from cotenant_lab.serving.simulated import Arrivals, ServedModel, Setting

_CUTS: Final = 2
"""Maximum number of tangents of the fairness constraint; with fewer, the bound is higher but holds."""
_SLOTS_PER_OBJECTIVE: Final = 8
_TOLERANCE: Final = 1e-6
_EQUAL: Final = 0.002
"""Relative difference up to which run times count as equal."""

Numbers = npt.NDArray[np.float64]


class Outcome(NamedTuple):
    """A possible duration of runs, relative to the time in the profile; the mean of all durations is that time."""

    chance: float
    factor: float
    """The smallest of this outcome's durations."""


def normal_outcomes(deviation: float) -> tuple[Outcome, ...]:
    """Return outcomes for durations with this relative standard deviation, cut at three of them as in the simulator."""
    edges = (-3.0, -0.43, 0.43)
    return tuple(Outcome(1 / 3, max(1 + deviation * edge, 0.0)) for edge in edges) if deviation else CERTAIN


CERTAIN: Final = (Outcome(1.0, 1.0),)
"""Every run takes the time in the profile."""


class _Kind(NamedTuple):
    rows: int
    units: int
    mean_ns: float
    """The mean time if no other run is active."""


def _kinds(speeds: RunSpeeds, rows: int, widths: Sequence[int]) -> list[_Kind]:
    """Return the kinds of runs of these rows; a width that is hardly faster than one with fewer units is merged.

    The fewer units then have the shorter time: no schedule becomes worse by that.
    """
    kinds: list[_Kind] = []
    for units in widths:
        run_ns = speeds.run_ns(rows, units)
        if kinds and run_ns >= kinds[-1].mean_ns * (1 - _EQUAL):
            kinds[-1] = kinds[-1]._replace(mean_ns=run_ns)
        else:
            kinds.append(_Kind(rows, units, run_ns))
    return kinds


class _Rows:
    """Coefficients of sparse constraints, row by row."""

    def __init__(self) -> None:
        self._entries: tuple[list[int], list[int], list[float]] = ([], [], [])
        self.limits: list[float] = []

    def new(self, limit: float = 0.0) -> int:
        self.limits.append(limit)
        return len(self.limits) - 1

    def add(self, row: int, column: int, value: float) -> None:
        rows, columns, values = self._entries
        rows.append(row)
        columns.append(column)
        values.append(value)

    def matrix(self, columns: int) -> Any:
        rows, positions, values = self._entries
        return coo_array((values, (rows, positions)), shape=(len(self.limits), columns)).tocsr()


class _Program:
    """The linear program of one device and window."""

    def __init__(self, setting: Setting, units: float, slot_ns: float, slots: int) -> None:
        self.setting = setting
        self.slot_ns = slot_ns
        self.slots = slots
        self.uppers: list[float] = []
        self.gains: list[float] = []
        self.equal = _Rows()
        self.at_most = _Rows()
        self._area = self.at_most.new(units * slots * slot_ns)
        self._held = [self.column(setting.all_units) for _ in range(slots)]
        self._balance = [self.equal.new() for _ in range(slots)]
        for slot, row in enumerate(self._balance):
            self.equal.add(row, self._held[slot], 1.0)
            if slot:
                self.equal.add(row, self._held[slot - 1], -1.0)

    def column(self, upper: float = math.inf, gain: float = 0.0) -> int:
        """Add a variable between zero and `upper`."""
        self.uppers.append(upper)
        self.gains.append(gain)
        return len(self.uppers) - 1

    def hold(self, column: int, kind: _Kind, slot: int, outcomes: Sequence[tuple[float, float]]) -> None:
        """Let a run that begins in a slot hold its units, and use its area."""
        units = min(kind.units * self.setting.contention, self.setting.all_units)
        self.at_most.add(self._area, column, units * kind.mean_ns)
        self.enter(slot + 1, column, -float(kind.units))
        for chance, least_ns in outcomes:
            self.enter(slot + max(math.ceil(least_ns / self.slot_ns), 1), column, kind.units * chance)

    def enter(self, slot: int, column: int, units: float) -> None:
        if slot < self.slots:
            self.equal.add(self._balance[slot], column, units)

    def solve(self) -> tuple[float, Numbers]:
        columns = len(self.uppers)
        solved = linprog(
            -np.array(self.gains),
            A_ub=self.at_most.matrix(columns),
            b_ub=np.array(self.at_most.limits),
            A_eq=self.equal.matrix(columns),
            b_eq=np.array(self.equal.limits),
            bounds=np.column_stack([np.zeros(columns), np.array(self.uppers)]),
            method="highs-ipm",
        )
        if solved.status != 0:
            raise RunFailedError(f"the bound of goodput cannot be computed: {solved.message}")
        return -float(solved.fun), solved.x


class _ModelPart:
    """The variables and constraints of one model."""

    def __init__(self, program: _Program, model: ServedModel, instants: Numbers, outcomes: Sequence[Outcome]) -> None:
        self.count = len(instants)
        speeds = RunSpeeds(model.truth or model.times)
        self._program = program
        self._instants = instants
        self._slo_ns = model.slo_ns
        self._outcomes = outcomes
        widths = [units for units in speeds.widths if units <= program.setting.all_units]
        self._kinds = [kind for rows in range(1, model.batch_limit + 1) for kind in _kinds(speeds, rows, widths)]
        equal = program.equal
        self.kept = [program.column(1.0, 1.0) for _ in instants]
        self._due = [equal.new() for _ in instants]
        credit = [program.column() for _ in instants]
        for index, row in enumerate(self._due):
            equal.add(row, self.kept[index], 1.0)
            equal.add(row, credit[index], 1.0)
            if index:
                equal.add(row, credit[index - 1], -1.0)
        self._add_runs()

    def _add_runs(self) -> None:
        program, equal = self._program, self._program.equal
        stocks = [program.column() for _ in range(program.slots)]
        arrived = np.searchsorted(self._instants, (np.arange(program.slots) + 1) * program.slot_ns, side="left")
        before = 0
        for slot, after in enumerate(arrived.tolist()):
            row = equal.new()
            equal.add(row, stocks[slot], 1.0)
            if slot:
                equal.add(row, stocks[slot - 1], -1.0)
            for index in range(before, after):
                equal.add(row, self.kept[index], -1.0)
            before = after
            for kind in self._kinds:
                self._add_kind(kind, slot, row, after)

    def _add_kind(self, kind: _Kind, slot: int, started: int, arrived: int) -> None:
        program = self._program
        begin_ns = slot * program.slot_ns
        least = self._least_times(kind)
        firsts = [
            int(np.searchsorted(self._instants, begin_ns + least_ns - self._slo_ns, side="left"))
            for _, least_ns in least
        ]
        counted = [min(kind.rows, arrived - first) for first in firsts]
        if max(counted) < kind.rows:
            return
        run = program.column()
        program.hold(run, kind, slot, least)
        for (chance, _), first, rows in zip(least, firsts, counted, strict=True):
            if rows <= 0:
                continue
            if len(least) == 1:
                rows_column, factor = run, float(rows)
            else:
                rows_column, factor = program.column(), 1.0
                limit = program.at_most.new()
                program.at_most.add(limit, rows_column, 1.0)
                program.at_most.add(limit, run, -rows * chance)
            program.equal.add(started, rows_column, factor)
            program.equal.add(self._due[first], rows_column, -factor)

    def _least_times(self, kind: _Kind) -> list[tuple[float, float]]:
        """Return chances and least durations, one for each number of slots."""
        merged: dict[int, tuple[float, float]] = {}
        for chance, factor in self._outcomes:
            took_ns = kind.mean_ns * factor
            slots = math.ceil(took_ns / self._program.slot_ns)
            before_chance, before_ns = merged.get(slots, (0.0, math.inf))
            merged[slots] = (before_chance + chance, min(before_ns, took_ns))
        return list(merged.values())


def most_in_schedule(
    models: Sequence[ServedModel],
    arrivals: Arrivals,
    setting: Setting,
    *,
    units: float | None = None,
    min_fairness: float = 0.0,
    outcomes: Mapping[str, Sequence[Outcome]] | None = None,
) -> float:
    """Return the most requests per second in time; `units` are those that other programs leave to runs on average."""
    first, last = setting.warm_ns, setting.warm_ns + setting.for_ns
    chosen = {
        model.name: np.array([when - first for when in arrivals[model.name] if first <= when < last], dtype=np.float64)
        for model in models
    }
    slot_ns = min(model.slo_ns for model in models) / _SLOTS_PER_OBJECTIVE
    slots = math.ceil((setting.for_ns + max(model.slo_ns for model in models)) / slot_ns)
    program = _Program(setting, setting.all_units if units is None else units, slot_ns, slots)
    given = outcomes or {}
    parts = [
        _ModelPart(program, model, chosen[model.name], given.get(model.name, CERTAIN))
        for model in models
        if len(chosen[model.name])
    ]
    most = 0.0
    for _ in range(_CUTS):
        most, solution = program.solve()
        if not _cut(program, parts, solution, min_fairness):
            break
    return most * SECOND_NS / setting.for_ns


def _cut(program: _Program, parts: Sequence[_ModelPart], solution: Numbers, min_fairness: float) -> bool:
    """Add the tangent that excludes this solution; return False if it is fair enough."""
    fractions = np.array([solution[part.kept].sum() / part.count for part in parts])
    norm = float(np.linalg.norm(fractions))
    scale = math.sqrt(min_fairness * len(parts))
    if scale * norm <= fractions.sum() * (1 + _TOLERANCE) or not norm:
        return False
    row = program.at_most.new()
    for part, fraction in zip(parts, fractions, strict=True):
        for column in part.kept:
            program.at_most.add(row, column, (scale * fraction / norm - 1) / part.count)
    return True
