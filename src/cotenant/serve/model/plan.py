"""The plan of a scheduling policy: batch, units and runs of each model, with the reason."""

from __future__ import annotations

from cotenant.units.instant import Duration
from cotenant.units.value import Value


class ModelPlan(Value, frozen=True):
    """The plan for one model."""

    model: str
    batch: int
    units: int
    expected_ns: Duration
    """Expected time of a run with this batch on these units."""
    runs: int
    """Runs per session."""
    rate: float
    """Rows per second that the plan assumes."""
    objective: str
    """The objective by which batch and units were chosen."""
    why: str
    """The reason, as a sentence."""


class ServePlan(Value, frozen=True):
    """The plan for all models of one device."""

    session_ns: Duration
    all_units: int
    models: tuple[ModelPlan, ...]
    used: float
    """Fraction of the device's units and time that the planned runs take; above 1, the device is overloaded."""
    why: str
