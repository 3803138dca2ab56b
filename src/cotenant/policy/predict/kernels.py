"""How does a task scale with its share, by its kernels alone? What a profile says before anything else is measured.

A kernel of so many blocks runs in waves: as many blocks at once as the SMs of its share hold. That goes for kernels
that memory bounds too: measured ResNets on a V100 follow it to 5 % of the SMs (docs/predictor.md), and would not if
bandwidth could be had by few SMs. The idle time between kernels either hides what they take longer (launches run
ahead of the device) or does not (the host waits for each result): the interval spans both, and kernels of unknown
shape between no slowing and a slowing in proportion.
"""

from __future__ import annotations

import math
from typing import Final

from cotenant.domain.curve import KNEE_SLACK, knee_pct
from cotenant.domain.estimate import COVERAGE, Estimate
from cotenant.domain.kernel import Work
from cotenant.domain.profile import KernelTiming, Profile
from cotenant.domain.value import Value

_MARGIN: Final = 0.12
"""Beyond the two ends, either way: what nine tenths of the latencies of RaPP's models keep to around a fitted curve."""


class Ahead(Value, frozen=True):
    """What is assumed where a profile does not tell. Our choices."""

    hidden: float = 1.0
    """Part of the idle time that hides what kernels take longer; 1: launches run ahead, as inference frameworks do."""
    coverage: float = COVERAGE


class _Slowing(Value, frozen=True):
    low: float
    point: float
    high: float


def stretch(profile: Profile, share: float, sms: int, ahead: Ahead | None = None) -> Estimate:
    """Time at this share over time on the whole GPU, of a GPU with so many SMs."""
    rules = ahead or Ahead()
    some = _some_of(share, sms)
    device_ns = profile.device_ns
    if device_ns <= 0 or some >= sms:
        return Estimate(1.0, 1.0, 1.0, rules.coverage)
    parts = [(timing.expected_ns / device_ns, _slowing(timing, some, sms)) for timing in profile.timings]
    known = [(part, slowing.point) for part, slowing in parts if part and slowing.low == slowing.high]
    typical = sum(part * point for part, point in known) / sum(part for part, _ in known) if known else sms / some
    low = sum(part * slowing.low for part, slowing in parts)
    high = sum(part * slowing.high for part, slowing in parts)
    point = sum(part * (slowing.point if slowing.low == slowing.high else typical) for part, slowing in parts)
    busy_ns = profile.busy_ns or device_ns
    span_ns = max(profile.span_ns, busy_ns)
    best = max(1.0, low * busy_ns / span_ns)
    worst = max(best, 1 + (high - 1) * busy_ns / span_ns)
    likely_hidden = max(1.0, point * busy_ns / span_ns)
    likely = likely_hidden + (1 - rules.hidden) * (1 + (point - 1) * busy_ns / span_ns - likely_hidden)
    likely = min(max(likely, best), worst)
    return Estimate(best * (1 - _MARGIN), likely, worst * (1 + _MARGIN), rules.coverage)


def analytical_knee_pct(profile: Profile, sms: int, ahead: Ahead | None = None, slack: float = KNEE_SLACK) -> int:
    """The least share (percent) past which the task hardly gets faster, by its kernels."""
    return knee_pct({share: stretch(profile, share / 100, sms, ahead).point for share in range(1, 101)}, slack)


def widths(profile: Profile, sms: int) -> tuple[tuple[float, float], ...]:
    """Which part of the GPU its kernels hold, for which part of its device time; unknown shapes hold all of it."""
    device_ns = profile.device_ns
    found: dict[float, float] = {}
    for timing in profile.timings:
        if timing.expected_ns <= 0:
            continue
        width = _width(timing, sms)
        found[width] = found.get(width, 0.0) + timing.expected_ns / device_ns
    return tuple(sorted(found.items()))


def _width(timing: KernelTiming, sms: int) -> float:
    if timing.kernel.work is not Work.KERNEL:
        return 0.0
    return (timing.sms_needed(sms) or sms) / sms


def _slowing(timing: KernelTiming, some: int, sms: int) -> _Slowing:
    """How many times as long a kernel takes on `some` of the SMs."""
    if timing.kernel.work is not Work.KERNEL:
        return _Slowing(1.0, 1.0, 1.0)
    if not timing.blocks_per_sm:
        return _Slowing(1.0, sms / some, sms / some)
    blocks = max(timing.kernel.blocks, 1)
    waves = math.ceil(blocks / (timing.blocks_per_sm * some)) / math.ceil(blocks / (timing.blocks_per_sm * sms))
    return _Slowing(waves, waves, waves)


def _some_of(share: float, sms: int) -> int:
    return min(sms, max(1, round(share * sms)))
