"""Predict: the device on which objectives are kept, and everybody together gets the most more done by a newcomer."""

from __future__ import annotations

from typing import Final

from cotenant.domain.foretold import Foretold
from cotenant.policy.place.choice import Weighed

_SHORT_STEP_PPM: Final = 10_000
_GOODPUT_STEP: Final = 0.05
"""Smaller differences are none: predictions err by more."""


def weigh(before: Foretold, after: Foretold) -> Weighed:
    """What changes on a device by the newcomer: objectives first, then goodput.

    One with an objective goes where objectives need least, whatever trainings could make of it: an objective that is
    missed because a prediction was wrong is worse than a slow training.
    """
    short_ppm = after.short_ppm - before.short_ppm
    gain = after.goodput - before.goodput
    needs = f"{after.needs_ppm / 10_000:.0f} % needed for objectives; " if after.needs_ppm else ""
    parts = [f"{name} {value:.2f}" for name, value in (("online", after.online), ("offline", after.offline)) if value]
    crowded = -(-after.needs_ppm // _SHORT_STEP_PPM)
    short = -(-short_ppm // _SHORT_STEP_PPM)
    gained = round(gain / _GOODPUT_STEP)
    cost = (short, crowded, -gained) if after.needs_ppm > before.needs_ppm else (short, -gained, crowded)
    return Weighed(cost, f"goodput {gain:+.2f} ({needs}{', '.join(parts) or 'nothing'} done there)", after.short_ppm)
