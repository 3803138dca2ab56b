"""Were earlier answers right? What happened shifts the next answer and widens or narrows its interval, within bounds.

The shift follows the logarithm of outcome over answer. The width follows adaptive conformal inference (Gibbs and
Candes, 2021): an outcome outside the interval widens it by a step times the coverage, one inside narrows it by a step
times the rest, so the two balance exactly where the stated part of the outcomes falls inside.
"""

from __future__ import annotations

import math
from typing import Final

from cotenant.domain.estimate import Estimate
from cotenant.domain.value import Value

_LEAST: Final = 1e-9


class Honesty(Value, frozen=True):
    """How fast it learns and how far it may go. Our choices; `cotenant lab predictor-node` shows what they do."""

    rate: float = 0.2
    """Weight of the latest error in the shift, once there are enough of them; the first ones are averaged."""
    patience: int = 1
    """So many outcomes without an error are taken to have been seen before the first."""
    most_shift: float = 0.7
    """In logarithms: at most about twice, at least half of the answer."""
    step: float = 0.2
    """Of the logarithm of the width."""
    least_scale: float = 0.25
    most_scale: float = 8.0


class Calibration(Value, frozen=True):
    """What was learned from outcomes so far."""

    seen: int = 0
    held: int = 0
    """Outcomes that lay within the interval that was given."""
    shift: float = 0.0
    log_scale: float = 0.0

    def corrected(self, raw: Estimate) -> Estimate:
        """The answer to give instead of the raw one."""
        return raw.moved(self.shift, math.exp(self.log_scale))

    def after(self, raw: Estimate, outcome: float, honesty: Honesty | None = None) -> Calibration:
        """What is known once this outcome followed this raw answer."""
        rules = honesty or Honesty()
        held = self.corrected(raw).holds(outcome)
        error = math.log(max(outcome, _LEAST) / max(raw.point, _LEAST))
        weight = max(rules.rate, 1 / (self.seen + 1 + rules.patience))
        shift = self.shift + weight * (_between(error, rules.most_shift) - self.shift)
        move = -rules.step * (1 - raw.coverage) if held else rules.step * raw.coverage
        log_scale = min(max(self.log_scale + move, math.log(rules.least_scale)), math.log(rules.most_scale))
        return Calibration(self.seen + 1, self.held + held, _between(shift, rules.most_shift), log_scale)

    @property
    def why(self) -> str:
        """The correction in words."""
        if not self.seen:
            return "no outcome seen yet: answers are given as predicted"
        return (
            f"after {self.seen} outcomes, {self.held} of them within the interval: "
            f"answers times {math.exp(self.shift):.2f}, intervals {math.exp(self.log_scale):.2f} times as wide"
        )


def _between(value: float, most: float) -> float:
    return min(max(value, -most), most)
