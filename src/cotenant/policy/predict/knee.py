"""Past how many units do a model's runs hardly get faster? By the measured curve, and by a model fitted to it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from cotenant.domain.curve import knee_pct
from cotenant.domain.runtimes import RunTime, table
from cotenant.domain.value import Value
from cotenant.policy.predict.latency import Point, fit_surface


class Knees(Value, frozen=True):
    """The same question answered twice."""

    rows: int
    """At which batch: the largest that was measured on every number of units."""
    curve_units: int
    model_units: int
    model_error: float
    """The median relative error of the fitted model at what it was fitted to."""

    @property
    def distance_units(self) -> int:
        """By how much the two differ."""
        return abs(self.curve_units - self.model_units)


def knees(alone: Sequence[RunTime], all_units: int) -> Knees:
    """Of runs that had the device to themselves; ValueError where nothing was measured."""
    by_units = table(alone)
    everywhere = set.intersection(*(set(rows) for rows in by_units.values())) if by_units else set()
    if not everywhere:
        raise ValueError("no batch was measured on every number of units")
    rows = max(everywhere)
    curve = knee_pct({units: found[rows].typical_ns for units, found in by_units.items()})
    surface = fit_surface([Point(one.units / all_units, one.rows, float(one.typical_ns)) for one in alone])
    # Up to what was measured: beyond that a fit only repeats what is usual on another kind of device.
    widest = max(by_units)
    law = {units: surface.latency(units / all_units, rows) for units in range(1, widest + 1)}
    errors = [abs(surface.latency(one.units / all_units, one.rows) / one.typical_ns - 1) for one in alone]
    return Knees(rows, curve, knee_pct(law), statistics.median(errors))
