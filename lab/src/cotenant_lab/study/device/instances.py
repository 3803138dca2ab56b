"""Predict latencies of 2 to 5 processes in an instance from half of the measurements, and compare with the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from cotenant.softgpu.costs import hardware
from cotenant_lab.data.parvagpu import PointName, Profiles
from cotenant_lab.physics import instance
from cotenant_lab.physics.instance import Cell
from cotenant_lab.study.error import (
    BEYOND,
    ErrorCheck,
    ErrorSplit,
    ErrorSummary,
    HalfErrors,
    UnexplainedCase,
    errors_of,
    half_errors,
    halves,
    relative,
)

TARGET: Final = 0.20
_GPCS: Final = 7
CHECK: Final = "processes in an instance"
_SERIAL: Final = 1.1
_FASTER: Final = 0.95


class InstancePrediction(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies in ms of the held-out cells."""

    known: list[Cell]
    predicted: dict[Cell, float]
    measured: dict[Cell, float]
    fitted: dict[Cell, float]
    """Latencies that the fit gives for the known cells."""


class Instances:
    """The profiles, and the device model's slowdown of every candidate process, computed once."""

    def __init__(self, profiles: Profiles) -> None:
        """Keep the points that have a measurement alone and at least one with several processes."""
        self.latency = {
            point: {count: latency * 1000 for count, latency in row.items()}
            for point, row in profiles.latency_s.items()
            if 1 in row and len(row) > 1
        }
        self.points: list[PointName] = sorted(self.latency)
        self.cells: list[Cell] = [(point, count) for point in self.points for count in sorted(self.latency[point])[1:]]
        self.candidates = instance.candidates()
        max_processes = max((count for _, count in self.cells), default=2)
        config = msgspec.structs.replace(hardware("a100-80"), sm_count=_GPCS * instance.GPC_SMS)
        self.table: Any = instance.slowdown_table(self.candidates, max_processes, config)
        alone_ns = {point: row[1] * 1e9 for point, row in profiles.latency_s.items() if 1 in row}
        self.wide = instance.wide_parts(alone_ns)

    def predict(self, known: Sequence[Cell]) -> InstancePrediction:
        """Predict all cells that are not known, from the latencies alone and the known cells."""
        slowdown = {cell: self.latency[cell[0]][cell[1]] / self.latency[cell[0]][1] for cell in known}
        fitted = instance.fit_processes(self.points, slowdown, self.wide, self.candidates, self.table)
        chosen = dict(zip(self.points, fitted, strict=True))
        latencies = {
            (point, count): float(self.table[chosen[point], count - 1]) * self.latency[point][1]
            for point, count in self.cells
        }
        predicted = {cell: latency for cell, latency in latencies.items() if cell not in slowdown}
        measured = {cell: self.latency[cell[0]][cell[1]] for cell in predicted}
        known_latencies = {cell: latencies[cell] for cell in known}
        return InstancePrediction(known=list(known), predicted=predicted, measured=measured, fitted=known_latencies)

    def known_cells(self, by: str, seed: int) -> list[Cell]:
        """Return half of the cells, or all cells of half of the points."""
        if by == "cell":
            return halves(self.cells, seed)[0]
        points = dict.fromkeys(halves(self.points, seed)[0])
        return [cell for cell in self.cells if cell[0] in points]

    def predict_from_alone(self) -> InstancePrediction:
        """Predict every cell of the points whose wide part is known, from latencies alone."""
        outcome = self.predict([])
        predicted = {cell: latency for cell, latency in outcome.predicted.items() if cell[0] in self.wide}
        return InstancePrediction(
            known=[], predicted=predicted, measured={cell: outcome.measured[cell] for cell in predicted}, fitted={}
        )

    def evaluate(self, outcome: InstancePrediction, name: str = CHECK) -> ErrorCheck:
        """Return errors on the held-out cells, with those of simpler predictors."""
        errors = _errors(outcome.predicted, outcome.measured)
        alone = {cell: self.latency[cell[0]][1] for cell in outcome.measured}
        turns = {cell: cell[1] * latency for cell, latency in alone.items()}
        guesses = {"no interference": alone, "fair time slices": turns}
        if outcome.known:
            guesses["line over known counts"] = {cell: self._line(cell, outcome.known) for cell in outcome.measured}
        return ErrorCheck(
            name=name,
            errors=errors,
            target=TARGET,
            met=errors.median <= TARGET,
            baselines={guess: _errors(values, outcome.measured) for guess, values in guesses.items()},
        )

    def half_errors(self, outcome: InstancePrediction) -> HalfErrors:
        """Return the errors of both halves."""
        return half_errors(
            [(predicted, outcome.measured[cell]) for cell, predicted in outcome.predicted.items()],
            [(fitted, self.latency[cell[0]][cell[1]]) for cell, fitted in outcome.fitted.items()],
        )

    def split(self, by: str, seed: int) -> ErrorSplit:
        """Return the errors for one split of the cells."""
        outcome = self.predict(self.known_cells(by, seed))
        errors = _errors(outcome.predicted, outcome.measured)
        return ErrorSplit(by=by, seed=seed, median=errors.median, p90=errors.p90)

    def unexplained(self, outcome: InstancePrediction) -> list[UnexplainedCase]:
        """Return cells with large errors, the worst first."""
        known = {cell[0] for cell in outcome.known}
        cases = []
        for cell, predicted in outcome.predicted.items():
            measured = outcome.measured[cell]
            if relative(predicted, measured) > BEYOND:
                cases.append(
                    UnexplainedCase(
                        check=CHECK,
                        case=case_name(cell),
                        error=round(relative(predicted, measured), 6),
                        predicted_ms=round(predicted, 6),
                        measured_ms=round(measured, 6),
                        reason=self._reason(cell, fitted=cell[0] in known),
                    )
                )
        return sorted(cases, key=lambda case: (-case.error, case.case))

    def _reason(self, cell: Cell, *, fitted: bool) -> str:
        """Describe what the measurements of this cell show."""
        point, count = cell
        row = self.latency[point]
        fewer = max(processes for processes in row if processes < count)
        if row[count] < _FASTER * row[fewer]:
            return f"measured faster with {count} processes than with {fewer}"
        if row[count] > _SERIAL * count * row[1]:
            return f"measured slower than {count} requests one after another"
        more = [processes for processes in row if processes > count]
        if more and row[more[0]] < _FASTER * row[count]:
            return f"measured faster with {more[0]} processes than with {count}"
        if not fitted:
            return "no other count of this point was among the known ones"
        return "no feature of the measured points found that the model lacks"

    def _line(self, cell: Cell, known: Sequence[Cell]) -> float:
        """Interpolate between the two nearest known counts; assume fair slices if only the latency alone is known."""
        point, count = cell
        counts = sorted([1, *(processes for name, processes in known if name == point)])
        if len(counts) == 1:
            return count * self.latency[point][1]
        right = next((index for index, processes in enumerate(counts) if processes > count), len(counts) - 1)
        low, high = counts[max(0, right - 1)], counts[max(1, right)]
        slope = (self.latency[point][high] - self.latency[point][low]) / (high - low)
        return max(self.latency[point][1] / 10, self.latency[point][low] + slope * (count - low))


def case_name(cell: Cell) -> str:
    """Return the cell as text."""
    (model, gpcs, batch), count = cell
    return f"{model} batch {batch}, {count} processes on {gpcs} GPCs"


def _errors(predicted: Mapping[Cell, float], measured: Mapping[Cell, float]) -> ErrorSummary:
    return errors_of({case_name(cell): relative(predicted[cell], measured[cell]) for cell in measured})
