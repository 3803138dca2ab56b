"""Predict: prefers the device where objectives are met and the total goodput increases most."""

from __future__ import annotations

from typing import Final

from cotenant.node.policy.place.choice import DeviceScore
from cotenant.predict.sharing_forecast import SharingForecast

_SHORT_STEP_PPM: Final = 10_000
_GOODPUT_STEP: Final = 0.05
"""Smaller differences are ignored because predictions are less accurate."""


def score(before: SharingForecast, after: SharingForecast) -> DeviceScore:
    """Score the change that a new tenant causes on a device: objectives first, then goodput.

    A tenant with an objective goes where objectives need least, whatever the goodput of trainings: an objective missed
    because of a wrong prediction is worse than a slow training.
    """
    shortfall_ppm = after.short_ppm - before.short_ppm
    gain = after.goodput - before.goodput
    needs = f"{after.needs_ppm / 10_000:.0f}% needed for latency objectives; " if after.needs_ppm else ""
    parts = [f"{name} {value:.2f}" for name, value in (("online", after.online), ("offline", after.offline)) if value]
    needed = -(-after.needs_ppm // _SHORT_STEP_PPM)
    missing = -(-shortfall_ppm // _SHORT_STEP_PPM)
    gained_steps = round(gain / _GOODPUT_STEP)
    cost = (missing, needed, -gained_steps) if after.needs_ppm > before.needs_ppm else (missing, -gained_steps, needed)
    return DeviceScore(cost, f"goodput {gain:+.2f} ({needs}{', '.join(parts) or 'none'} on this GPU)", after.short_ppm)
