"""What does a server intend? For each model a batch, a part of the device and how often it runs; and why."""

from __future__ import annotations

from cotenant.domain.instant import Duration
from cotenant.domain.value import Value


class ModelPlan(Value, frozen=True):
    """One model's part of a plan."""

    model: str
    batch: int
    units: int
    expected_ns: Duration
    """Of a run of that batch on those units."""
    runs: int
    """In a session."""
    rate: float
    """Rows a second that were planned for."""
    objective: str
    """By which batch and units were chosen, in a word."""
    why: str
    """One sentence for people."""


class ServePlan(Value, frozen=True):
    """All models of one device."""

    session_ns: Duration
    all_units: int
    models: tuple[ModelPlan, ...]
    used: float
    """Part of the device's space-time that the planned runs take; above 1, there is not enough for all."""
    why: str
