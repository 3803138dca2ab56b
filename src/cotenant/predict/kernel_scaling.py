"""Scaling of a task with its share, from the kernels of its profile alone.

A kernel runs in waves of as many blocks as the SMs of the share hold. This holds for memory-bound kernels as well:
measured ResNets on a V100 follow it down to 5 % of the SMs, which they would not if few SMs could use all of the
bandwidth. Idle time between kernels hides the longer kernels (if launches run ahead of the device) or does not (if the
host waits for each result); the interval spans both. Kernels of unknown shape are between no slowdown and a
proportional one.
"""

from __future__ import annotations

import math
from typing import Final

from cotenant.predict.curve import KNEE_SLACK, knee_pct
from cotenant.profile.profile import KernelTiming, Profile
from cotenant.units.estimate import COVERAGE, Estimate
from cotenant.units.value import Value
from cotenant.workload.kernel import WorkKind

_MARGIN: Final = 0.12
"""Margin beyond both ends of the interval; 90 % of the latencies of RaPP's models are this close to a fitted curve."""


class HostOverlap(Value, frozen=True):
    """Assumptions about the overlap of host and device, which a profile does not contain. Our choices."""

    hidden: float = 1.0
    """Part of the idle time that hides longer kernels; 1: launches run ahead, as in inference frameworks."""
    coverage: float = COVERAGE


class _Slowing(Value, frozen=True):
    low: float
    point: float
    high: float


def stretch(profile: Profile, share: float, sms: int, ahead: HostOverlap | None = None) -> Estimate:
    """Return the time at this share relative to that on the whole GPU with `sms` SMs."""
    rules = ahead or HostOverlap()
    share_sms = _sms_of_share(share, sms)
    device_ns = profile.device_ns
    if device_ns <= 0 or share_sms >= sms:
        return Estimate(1.0, 1.0, 1.0, rules.coverage)
    parts = [(timing.expected_ns / device_ns, _slowing(timing, share_sms, sms)) for timing in profile.timings]
    known_shapes = [(part, slowing.point) for part, slowing in parts if part and slowing.low == slowing.high]
    typical = (
        sum(part * point for part, point in known_shapes) / sum(part for part, _ in known_shapes)
        if known_shapes
        else sms / share_sms
    )
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


def analytical_knee_pct(profile: Profile, sms: int, ahead: HostOverlap | None = None, slack: float = KNEE_SLACK) -> int:
    """Return the smallest share (percent) beyond which the task hardly gets faster, from its kernels."""
    return knee_pct({share: stretch(profile, share / 100, sms, ahead).point for share in range(1, 101)}, slack)


def widths(profile: Profile, sms: int) -> tuple[tuple[float, float], ...]:
    """Return the part of the GPU that kernels hold and for which part of device time; unknown shapes hold all of it."""
    device_ns = profile.device_ns
    part_by_width: dict[float, float] = {}
    for timing in profile.timings:
        if timing.expected_ns <= 0:
            continue
        width = _width(timing, sms)
        part_by_width[width] = part_by_width.get(width, 0.0) + timing.expected_ns / device_ns
    return tuple(sorted(part_by_width.items()))


def _width(timing: KernelTiming, sms: int) -> float:
    if timing.kernel.work is not WorkKind.KERNEL:
        return 0.0
    return (timing.sms_needed(sms) or sms) / sms


def _slowing(timing: KernelTiming, share_sms: int, sms: int) -> _Slowing:
    """Return the slowdown of a kernel on `share_sms` of the SMs."""
    if timing.kernel.work is not WorkKind.KERNEL:
        return _Slowing(1.0, 1.0, 1.0)
    if not timing.blocks_per_sm:
        return _Slowing(1.0, sms / share_sms, sms / share_sms)
    blocks = max(timing.kernel.blocks, 1)
    waves = math.ceil(blocks / (timing.blocks_per_sm * share_sms)) / math.ceil(blocks / (timing.blocks_per_sm * sms))
    return _Slowing(waves, waves, waves)


def _sms_of_share(share: float, sms: int) -> int:
    return min(sms, max(1, round(share * sms)))
