"""Number of units beyond which the runs of a model hardly get faster, from measurements and from a fitted model."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from cotenant.predict.curve import knee_pct
from cotenant.predict.latency import Point, fit_surface
from cotenant.serve.model.run_times import RunTime, table
from cotenant.units.value import Value


class Knees(Value, frozen=True):
    """The knee by two methods."""

    rows: int
    """Batch size: the largest that was measured with every number of units."""
    curve_units: int
    model_units: int
    model_error: float
    """Median relative error of the fitted model at the measurements."""

    @property
    def distance_units(self) -> int:
        """Return the difference of the two knees."""
        return abs(self.curve_units - self.model_units)


def knees(alone: Sequence[RunTime], all_units: int) -> Knees:
    """Return the knees from runs alone on the device; raises ValueError without measurements."""
    by_units = table(alone)
    common_rows = set.intersection(*(set(rows) for rows in by_units.values())) if by_units else set()
    if not common_rows:
        raise ValueError("no batch was measured on every number of units")
    rows = max(common_rows)
    curve = knee_pct({units: by_rows[rows].typical_ns for units, by_rows in by_units.items()})
    surface = fit_surface(
        [Point(run_time.units / all_units, run_time.rows, float(run_time.typical_ns)) for run_time in alone]
    )
    # Only up to the measured range: beyond it the fit only repeats its prior.
    widest = max(by_units)
    law = {units: surface.latency(units / all_units, rows) for units in range(1, widest + 1)}
    errors = [
        abs(surface.latency(run_time.units / all_units, run_time.rows) / run_time.typical_ns - 1) for run_time in alone
    ]
    return Knees(rows, curve, knee_pct(law), statistics.median(errors))
