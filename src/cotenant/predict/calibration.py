"""Correction of predictions and their intervals by observed outcomes.

The shift follows the logarithm of outcome over prediction. The width follows adaptive conformal inference (Gibbs and
Candes, 2021): an outcome outside the interval widens it by a step times the coverage, one inside narrows it by a step
times the remaining probability, so that the two balance where the stated part of the outcomes lies inside.
"""

from __future__ import annotations

import math
from typing import Final

from cotenant.units.estimate import Estimate
from cotenant.units.value import Value

_MIN_VALUE: Final = 1e-9


class CalibrationRules(Value, frozen=True):
    """Learning rates and bounds. Our choices; `cotenant-lab study predictor` shows their effect."""

    rate: float = 0.2
    """Weight of the latest error in the shift; the first errors are averaged."""
    patience: int = 1
    """Number of error-free outcomes that are assumed before the first."""
    max_shift: float = 0.7
    """Largest shift, in logarithms: about a factor of two either way."""
    step: float = 0.2
    """Step of the logarithm of the width."""
    min_scale: float = 0.25
    max_scale: float = 8.0


class Calibration(Value, frozen=True):
    """A correction of predictions and of their intervals, learned from outcomes."""

    seen: int = 0
    held: int = 0
    """Outcomes within the predicted interval."""
    shift: float = 0.0
    log_scale: float = 0.0

    def corrected(self, raw: Estimate) -> Estimate:
        """Return the corrected prediction."""
        return raw.moved(self.shift, math.exp(self.log_scale))

    def after(self, raw: Estimate, outcome: float, rules: CalibrationRules | None = None) -> Calibration:
        """Return the calibration after this outcome followed this uncorrected prediction."""
        rules = rules or CalibrationRules()
        held = self.corrected(raw).holds(outcome)
        error = math.log(max(outcome, _MIN_VALUE) / max(raw.point, _MIN_VALUE))
        weight = max(rules.rate, 1 / (self.seen + 1 + rules.patience))
        shift = self.shift + weight * (_clamp(error, rules.max_shift) - self.shift)
        step = -rules.step * (1 - raw.coverage) if held else rules.step * raw.coverage
        log_scale = min(max(self.log_scale + step, math.log(rules.min_scale)), math.log(rules.max_scale))
        return Calibration(self.seen + 1, self.held + held, _clamp(shift, rules.max_shift), log_scale)

    @property
    def why(self) -> str:
        """Return the correction as text."""
        if not self.seen:
            return "no outcome seen yet: answers are given as predicted"
        return (
            f"after {self.seen} outcomes, {self.held} of them within the interval: "
            f"answers times {math.exp(self.shift):.2f}, intervals {math.exp(self.log_scale):.2f} times as wide"
        )


def _clamp(value: float, limit: float) -> float:
    return min(max(value, -limit), limit)
