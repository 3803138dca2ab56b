"""Monitor: does this device harm the online work on it? One state per device, moved by its samples alone.

The states are those of MuxFlow's monitor; thresholds and the way between the states are ours (docs/protection.md):
a device goes up one step at a time, each step after samples in a row, and down again only after a longer calm.
"""

from __future__ import annotations

import enum

import msgspec

from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import NEVER, Instant
from cotenant.domain.protect import EVICTIONS_LIMIT, GpuSample, GpuWatch, Health, ProtectLimits
from cotenant.format.quantity import format_duration, format_share
from cotenant.policy.protect.backoff import delay_ns


class Level(enum.IntEnum):
    """How one sample looks."""

    CALM = 0
    """Below everything: counts towards recovery."""
    BETWEEN = 1
    """Neither harmful nor calm: what keeps a device from changing its state to and fro."""
    HIGH = 2
    """No more offline work should come."""
    OVER = 3
    """Online work is there and suffers, and offline work that could go is there, too."""


def judge(sample: GpuSample, limits: ProtectLimits) -> tuple[Level, str]:
    """How the worst of a sample's metrics looks, and that metric in words; what is not told (-1) is calm."""
    found = [_memory(sample, limits), _clock(sample, limits), _saturation(sample, limits)]
    return max(found, key=lambda one: one[0])


def observe(watch: GpuWatch, sample: GpuSample, limits: ProtectLimits, now: Instant) -> GpuWatch:
    """What is to be remembered of a device after one more sample."""
    level, why = judge(sample, limits)
    if watch.health is Health.DISABLED:
        return watch
    if watch.health is Health.OVERLIMIT:
        return _in_overlimit(watch, level, limits, now)
    if watch.health is Health.UNHEALTHY:
        return _in_unhealthy(watch, level, why, limits, now)
    return _in_healthy(watch, level, why, limits, now)


def lost(watch: GpuWatch, why: str, now: Instant) -> GpuWatch:
    """The device, or what leads to it, is gone; who is lost twice stays lost since the first time."""
    return watch if watch.health is Health.DISABLED else _move(watch, Health.DISABLED, why, now)


def back(watch: GpuWatch, now: Instant) -> GpuWatch:
    """It answers again: known only after some samples; its evictions are not forgotten."""
    return _move(watch, Health.INIT, "it answers again", now) if watch.health is Health.DISABLED else watch


def _move(watch: GpuWatch, health: Health, why: str, now: Instant) -> GpuWatch:
    return msgspec.structs.replace(watch, health=health, since_ns=now, why=why, breaches=0, calm=0, until_ns=NEVER)


def _in_healthy(watch: GpuWatch, level: Level, why: str, limits: ProtectLimits, now: Instant) -> GpuWatch:
    """Init and Healthy: up after harm in a row; Init becomes Healthy after good samples in a row."""
    if level >= Level.HIGH:
        if watch.breaches + 1 >= limits.samples:
            return _move(watch, Health.UNHEALTHY, why, now)
        return msgspec.structs.replace(watch, breaches=watch.breaches + 1, calm=0)
    if watch.health is Health.INIT and watch.calm + 1 >= limits.init_samples:
        return _move(watch, Health.HEALTHY, "its first samples are good", now)
    calm = watch.calm + 1 if watch.health is Health.INIT else 0
    return msgspec.structs.replace(watch, breaches=0, calm=calm)


def _in_unhealthy(watch: GpuWatch, level: Level, why: str, limits: ProtectLimits, now: Instant) -> GpuWatch:
    """Up after harm in a row, down after calm in a row."""
    if level is Level.OVER:
        if watch.breaches + 1 >= limits.over_samples:
            return _overlimit(watch, why, limits, now)
        return msgspec.structs.replace(watch, breaches=watch.breaches + 1, calm=0)
    if level is not Level.CALM:
        return msgspec.structs.replace(watch, breaches=0, calm=0)
    if watch.calm + 1 >= limits.calm_samples:
        return _move(watch, Health.HEALTHY, "calm again", now)
    return msgspec.structs.replace(watch, breaches=0, calm=watch.calm + 1)


def _overlimit(watch: GpuWatch, why: str, limits: ProtectLimits, now: Instant) -> GpuWatch:
    """Offline goes, and stays away for longer each time that it came to this lately."""
    lately = [at for at in watch.evictions if now - at <= limits.backoff_window_ns]
    evictions = (*lately, now)[-EVICTIONS_LIMIT:]
    wait_ns = delay_ns(len(evictions), limits.backoff_ns, limits.backoff_cap_ns)
    told = f"{why}; offline is away for {format_duration(wait_ns)} at least"
    moved = _move(watch, Health.OVERLIMIT, told, now)
    return msgspec.structs.replace(moved, evictions=evictions, until_ns=now + wait_ns)


def _in_overlimit(watch: GpuWatch, level: Level, limits: ProtectLimits, now: Instant) -> GpuWatch:
    """Down to Unhealthy once the back-off is over and nothing was over its limit for long enough."""
    calm = 0 if level is Level.OVER else min(watch.calm + 1, limits.calm_samples)
    if now >= watch.until_ns and calm >= limits.calm_samples:
        return _move(watch, Health.UNHEALTHY, "the back-off is over", now)
    return msgspec.structs.replace(watch, calm=calm)


def _is_shared(sample: GpuSample) -> bool:
    """Whether online work is there to be harmed, and offline work that could go."""
    return sample.online_memory_bytes > 0 and sample.offline_memory_bytes > 0


def _memory(sample: GpuSample, limits: ProtectLimits) -> tuple[Level, str]:
    if sample.memory_used_bytes < 0 or sample.memory_bytes <= 0:
        return Level.CALM, ""
    used_ppm = min(sample.memory_used_bytes * WHOLE_PPM // sample.memory_bytes, WHOLE_PPM)
    if used_ppm > limits.memory_over_ppm and _is_shared(sample):
        return Level.OVER, f"{_percent(used_ppm)} of the memory used, above {format_share(limits.memory_over_ppm)}"
    if used_ppm > limits.memory_ppm:
        return Level.HIGH, f"{_percent(used_ppm)} of the memory used, above {format_share(limits.memory_ppm)}"
    return (Level.BETWEEN if used_ppm > limits.memory_calm_ppm else Level.CALM), ""


def _clock(sample: GpuSample, limits: ProtectLimits) -> tuple[Level, str]:
    """An idle device saves power: only under load does a low clock mean that it cannot do better."""
    if sample.clock_ppm < 0 or sample.utilization_ppm < limits.load_ppm:
        return Level.CALM, ""
    if sample.clock_ppm < limits.clock_over_ppm and _is_shared(sample):
        return Level.OVER, f"SM clock at {_percent(sample.clock_ppm)}, below {format_share(limits.clock_over_ppm)}"
    if sample.clock_ppm < limits.clock_ppm:
        return Level.HIGH, f"SM clock at {_percent(sample.clock_ppm)}, below {format_share(limits.clock_ppm)}"
    return (Level.BETWEEN if sample.clock_ppm < limits.clock_calm_ppm else Level.CALM), ""


def _saturation(sample: GpuSample, limits: ProtectLimits) -> tuple[Level, str]:
    """A full device is what sharing is for, and the gate keeps online ahead: it only is no place for more."""
    if sample.utilization_ppm < 0 or sample.sm_activity_ppm < 0 or sample.online_memory_bytes <= 0:
        return Level.CALM, ""
    if sample.utilization_ppm > limits.utilization_ppm and sample.sm_activity_ppm > limits.sm_activity_ppm:
        busy = f"{_percent(sample.utilization_ppm)} utilization and {_percent(sample.sm_activity_ppm)} SM activity"
        limit = f"{format_share(limits.utilization_ppm)} and {format_share(limits.sm_activity_ppm)}"
        return Level.HIGH, f"{busy}, above {limit}"
    is_calm = (
        sample.utilization_ppm <= limits.utilization_calm_ppm or sample.sm_activity_ppm <= limits.sm_activity_calm_ppm
    )
    return (Level.CALM if is_calm else Level.BETWEEN), ""


def _percent(ppm: int) -> str:
    """A measured share: the tenth of a percent is what anybody reads."""
    return f"{ppm / 10_000:.1f}%"
