"""Can half of what 2 to 5 processes in an instance were measured at foretell the other half?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from cotenant.experiment.lab.judge import BEYOND, Check, Errors, Split, Unexplained, errors_of, halves, relative
from cotenant.format.measured.parvagpu import PointName, Profiles
from cotenant.sim.device import preset
from cotenant.sim.physics import instance
from cotenant.sim.physics.instance import Cell

TARGET: Final = 0.20
_GPCS: Final = 7
CHECK: Final = "processes in an instance"
_SERIAL: Final = 1.1
_FASTER: Final = 0.95


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies in ms of the cells held out, by cell."""

    known: list[Cell]
    foretold: dict[Cell, float]
    measured: dict[Cell, float]


class Instances:
    """The profiles, and the device model's answer for every candidate process, worked out once."""

    def __init__(self, profiles: Profiles) -> None:
        """Points without a measurement alone, or with nothing but it, say nothing here."""
        self.latency = {
            point: {count: latency * 1000 for count, latency in row.items()}
            for point, row in profiles.latency_s.items()
            if 1 in row and len(row) > 1
        }
        self.points: list[PointName] = sorted(self.latency)
        self.cells: list[Cell] = [(point, count) for point in self.points for count in sorted(self.latency[point])[1:]]
        self.candidates = instance.candidates()
        most = max((count for _, count in self.cells), default=2)
        config = msgspec.structs.replace(preset("a100-80"), sm_count=_GPCS * instance.GPC_SMS)
        self.table: Any = instance.slowdown_table(self.candidates, most, config)
        alone_ns = {point: row[1] * 1e9 for point, row in profiles.latency_s.items() if 1 in row}
        self.wide = instance.wide_parts(alone_ns)

    def foretell(self, known: Sequence[Cell]) -> Outcome:
        """All cells that are not known, from the latencies alone and the known cells."""
        slowdown = {cell: self.latency[cell[0]][cell[1]] / self.latency[cell[0]][1] for cell in known}
        fitted = instance.fit_processes(self.points, slowdown, self.wide, self.candidates, self.table)
        chosen = dict(zip(self.points, fitted, strict=True))
        foretold = {
            (point, count): float(self.table[chosen[point], count - 1]) * self.latency[point][1]
            for point, count in self.cells
            if (point, count) not in slowdown
        }
        measured = {cell: self.latency[cell[0]][cell[1]] for cell in foretold}
        return Outcome(known=list(known), foretold=foretold, measured=measured)

    def known_cells(self, by: str, seed: int) -> list[Cell]:
        """Half of the cells, or all cells of half of the points."""
        if by == "cell":
            return halves(self.cells, seed)[0]
        points = dict.fromkeys(halves(self.points, seed)[0])
        return [cell for cell in self.cells if cell[0] in points]

    def foretell_by_alone(self) -> Outcome:
        """Every cell of the points of which the latencies alone say something, and nothing known together."""
        outcome = self.foretell([])
        foretold = {cell: latency for cell, latency in outcome.foretold.items() if cell[0] in self.wide}
        return Outcome(known=[], foretold=foretold, measured={cell: outcome.measured[cell] for cell in foretold})

    def judge(self, outcome: Outcome, name: str = CHECK) -> Check:
        """Errors on what was held out, beside those of simpler guesses."""
        errors = _errors(outcome.foretold, outcome.measured)
        alone = {cell: self.latency[cell[0]][1] for cell in outcome.measured}
        turns = {cell: cell[1] * latency for cell, latency in alone.items()}
        guesses = {"no interference": alone, "fair time slices": turns}
        if outcome.known:
            guesses["line over known counts"] = {cell: self._line(cell, outcome.known) for cell in outcome.measured}
        return Check(
            name=name,
            errors=errors,
            target=TARGET,
            met=errors.median <= TARGET,
            baselines={guess: _errors(values, outcome.measured) for guess, values in guesses.items()},
        )

    def split(self, by: str, seed: int) -> Split:
        """The errors under one way to halve the cells."""
        outcome = self.foretell(self.known_cells(by, seed))
        errors = _errors(outcome.foretold, outcome.measured)
        return Split(by=by, seed=seed, median=errors.median, p90=errors.p90)

    def unexplained(self, outcome: Outcome) -> list[Unexplained]:
        """Cells beyond explaining, the worst first."""
        known = {cell[0] for cell in outcome.known}
        found = []
        for cell, foretold in outcome.foretold.items():
            measured = outcome.measured[cell]
            if relative(foretold, measured) > BEYOND:
                found.append(
                    Unexplained(
                        check=CHECK,
                        case=case_name(cell),
                        error=round(relative(foretold, measured), 6),
                        foretold_ms=round(foretold, 6),
                        measured_ms=round(measured, 6),
                        reason=self._reason(cell, fitted=cell[0] in known),
                    )
                )
        return sorted(found, key=lambda case: (-case.error, case.case))

    def _reason(self, cell: Cell, *, fitted: bool) -> str:
        """What the measurements alone say."""
        point, count = cell
        row = self.latency[point]
        before = max(other for other in row if other < count)
        if row[count] < _FASTER * row[before]:
            return f"measured faster with {count} processes than with {before}"
        if row[count] > _SERIAL * count * row[1]:
            return f"measured slower than {count} requests one after another"
        after = [other for other in row if other > count]
        if after and row[after[0]] < _FASTER * row[count]:
            return f"measured faster with {after[0]} processes than with {count}"
        if not fitted:
            return "no other count of this point was among the known ones"
        return "no feature of the measured points found that the model lacks"

    def _line(self, cell: Cell, known: Sequence[Cell]) -> float:
        """Straight through the two known counts next to it; fair slices where only the latency alone is known."""
        point, count = cell
        counts = sorted([1, *(other for name, other in known if name == point)])
        if len(counts) == 1:
            return count * self.latency[point][1]
        right = next((index for index, other in enumerate(counts) if other > count), len(counts) - 1)
        low, high = counts[max(0, right - 1)], counts[max(1, right)]
        slope = (self.latency[point][high] - self.latency[point][low]) / (high - low)
        return max(self.latency[point][1] / 10, self.latency[point][low] + slope * (count - low))


def case_name(cell: Cell) -> str:
    """The cell in words."""
    (model, gpcs, batch), count = cell
    return f"{model} batch {batch}, {count} processes on {gpcs} GPCs"


def _errors(foretold: Mapping[Cell, float], measured: Mapping[Cell, float]) -> Errors:
    return errors_of({case_name(cell): relative(foretold[cell], measured[cell]) for cell in measured})
