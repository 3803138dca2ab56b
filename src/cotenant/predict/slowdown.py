"""Slowdown of tenants that share a GPU, by the same model as the speed of a cluster's jobs (`speed.py`).

The slowdown of a tenant is the inverse of its speed next to all others. Time slices and MPS have a model each; under
MPS tenants also slow each other through caches and memory where their SMs are disjoint.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cotenant.predict.usage import TaskUse
from cotenant.units.estimate import Estimate

if TYPE_CHECKING:
    from cotenant.predict.speed import SpeedPredictor


def slowdowns(
    uses: Sequence[TaskUse | None], *, is_mps: bool = True, shares: Sequence[float] = ()
) -> tuple[Estimate, ...]:
    """Return for each tenant the time together over time alone; None: a tenant of unknown use.

    `shares`: part of the SMs to which each tenant is limited; its time alone is then that within its share.
    """
    if len(uses) < 2:
        return (Estimate(1.0, 1.0, 1.0),) * len(uses)
    limited = uses
    if shares:
        limited = [None if use is None else use.within(share) for use, share in zip(uses, shares, strict=True)]
    return _predictor(is_mps=is_mps).slowdowns(limited)


def points_of(uses: Sequence[TaskUse | None], *, is_mps: bool = True) -> list[float]:
    """Return the slowdown of each tenant for a forecast: without uncertainty, and never less with another tenant."""
    return [1.0] * len(uses) if len(uses) < 2 else _predictor(is_mps=is_mps).most_slowdowns(uses)


def interferences(uses: Sequence[TaskUse | None], *, is_mps: bool = True) -> list[float]:
    """Return the part of each tenant's slowdown that remains where tenants do not compete for SMs."""
    return [1.0] * len(uses) if len(uses) < 2 else _predictor(is_mps=is_mps).interferences(uses)


def share_interference() -> float:
    """Return the slowdown of work on a part of the SMs while other work, of unknown use, has others."""
    from cotenant.predict.speed_parameters import load_parameters  # loads numpy and the fitted parameters

    return 1 + load_parameters().modes["mps"].law.interference


@functools.cache
def _predictor(*, is_mps: bool) -> SpeedPredictor:
    from cotenant.predict.speed import SpeedPredictor  # loads numpy and the fitted parameters

    return SpeedPredictor(mode="mps" if is_mps else "time")
