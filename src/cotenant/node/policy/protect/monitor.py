"""The health monitor: one state per device, changed only by its samples.

The states are those of MuxFlow's monitor; thresholds and transitions are the project's (docs/concepts/protection.md):
a device degrades one step at a time, each after consecutive samples, and recovers after a longer calm.
"""

from __future__ import annotations

import enum

import msgspec

from cotenant.node.model.protection import EVICTIONS_LIMIT, GpuSample, GpuWatch, Health, ProtectLimits
from cotenant.node.policy.protect.backoff import delay_ns
from cotenant.units.instant import NEVER, Instant
from cotenant.units.share import WHOLE_PPM
from cotenant.units.text import format_duration, format_share


class SampleLevel(enum.IntEnum):
    """Severity of one sample."""

    CALM = 0
    """Below all thresholds: counts towards recovery."""
    BETWEEN = 1
    """Neither high nor calm: hysteresis against oscillation."""
    HIGH = 2
    """No further offline tenants should join."""
    OVER = 3
    """Online and offline tenants are present and the online ones are harmed."""


def assess(sample: GpuSample, limits: ProtectLimits) -> tuple[SampleLevel, str]:
    """Return the severity of the worst metric and its description; a value that is not reported (-1) is calm."""
    assessments = [_memory(sample, limits), _clock(sample, limits), _saturation(sample, limits)]
    return max(assessments, key=lambda assessment: assessment[0])


def observe(watch: GpuWatch, sample: GpuSample, limits: ProtectLimits, now: Instant) -> GpuWatch:
    """Return the state of a device after one more sample."""
    level, why = assess(sample, limits)
    if watch.health is Health.DISABLED:
        return watch
    if watch.health is Health.OVERLIMIT:
        return _in_overlimit(watch, level, limits, now)
    if watch.health is Health.UNHEALTHY:
        return _in_unhealthy(watch, level, why, limits, now)
    return _in_healthy(watch, level, why, limits, now)


def disabled(watch: GpuWatch, why: str, now: Instant) -> GpuWatch:
    """Return the state of a device that is not available; a second call changes nothing."""
    return watch if watch.health is Health.DISABLED else _with_health(watch, Health.DISABLED, why, now)


def recovered(watch: GpuWatch, now: Instant) -> GpuWatch:
    """Return the state of a device that responds again: Init, with its eviction history."""
    return _with_health(watch, Health.INIT, "it responds again", now) if watch.health is Health.DISABLED else watch


def _with_health(watch: GpuWatch, health: Health, why: str, now: Instant) -> GpuWatch:
    return msgspec.structs.replace(watch, health=health, since_ns=now, why=why, breaches=0, calm=0, until_ns=NEVER)


def _in_healthy(watch: GpuWatch, level: SampleLevel, why: str, limits: ProtectLimits, now: Instant) -> GpuWatch:
    """Init and Healthy: degrade after consecutive high samples; Init becomes Healthy after good samples."""
    if level >= SampleLevel.HIGH:
        if watch.breaches + 1 >= limits.samples:
            return _with_health(watch, Health.UNHEALTHY, why, now)
        return msgspec.structs.replace(watch, breaches=watch.breaches + 1, calm=0)
    if watch.health is Health.INIT and watch.calm + 1 >= limits.init_samples:
        return _with_health(watch, Health.HEALTHY, "its first samples are below all thresholds", now)
    calm = watch.calm + 1 if watch.health is Health.INIT else 0
    return msgspec.structs.replace(watch, breaches=0, calm=calm)


def _in_unhealthy(watch: GpuWatch, level: SampleLevel, why: str, limits: ProtectLimits, now: Instant) -> GpuWatch:
    """Unhealthy: degrade after consecutive samples over the limit, recover after calm ones."""
    if level is SampleLevel.OVER:
        if watch.breaches + 1 >= limits.over_samples:
            return _overlimit(watch, why, limits, now)
        return msgspec.structs.replace(watch, breaches=watch.breaches + 1, calm=0)
    if level is not SampleLevel.CALM:
        return msgspec.structs.replace(watch, breaches=0, calm=0)
    if watch.calm + 1 >= limits.calm_samples:
        return _with_health(watch, Health.HEALTHY, "below all thresholds again", now)
    return msgspec.structs.replace(watch, breaches=0, calm=watch.calm + 1)


def _overlimit(watch: GpuWatch, why: str, limits: ProtectLimits, now: Instant) -> GpuWatch:
    """Begin Overlimit, with a longer back-off for each recent one."""
    recent = [instant for instant in watch.evictions if now - instant <= limits.backoff_window_ns]
    evictions = (*recent, now)[-EVICTIONS_LIMIT:]
    wait_ns = delay_ns(len(evictions), limits.backoff_ns, limits.backoff_cap_ns)
    reason = f"{why}; no offline tenants for at least {format_duration(wait_ns)}"
    overlimit = _with_health(watch, Health.OVERLIMIT, reason, now)
    return msgspec.structs.replace(overlimit, evictions=evictions, until_ns=now + wait_ns)


def _in_overlimit(watch: GpuWatch, level: SampleLevel, limits: ProtectLimits, now: Instant) -> GpuWatch:
    """Overlimit: return to Unhealthy after the back-off and enough samples below the limit."""
    calm = 0 if level is SampleLevel.OVER else min(watch.calm + 1, limits.calm_samples)
    if now >= watch.until_ns and calm >= limits.calm_samples:
        return _with_health(watch, Health.UNHEALTHY, "the back-off is over", now)
    return msgspec.structs.replace(watch, calm=calm)


def _is_shared(sample: GpuSample) -> bool:
    """Return whether both online and offline tenants hold memory."""
    return sample.online_memory_bytes > 0 and sample.offline_memory_bytes > 0


def _memory(sample: GpuSample, limits: ProtectLimits) -> tuple[SampleLevel, str]:
    if sample.memory_used_bytes < 0 or sample.memory_bytes <= 0:
        return SampleLevel.CALM, ""
    used_ppm = min(sample.memory_used_bytes * WHOLE_PPM // sample.memory_bytes, WHOLE_PPM)
    if used_ppm > limits.memory_over_ppm and _is_shared(sample):
        return (
            SampleLevel.OVER,
            f"{_percent(used_ppm)} of the memory used, above {format_share(limits.memory_over_ppm)}",
        )
    if used_ppm > limits.memory_ppm:
        return SampleLevel.HIGH, f"{_percent(used_ppm)} of the memory used, above {format_share(limits.memory_ppm)}"
    return (SampleLevel.BETWEEN if used_ppm > limits.memory_calm_ppm else SampleLevel.CALM), ""


def _clock(sample: GpuSample, limits: ProtectLimits) -> tuple[SampleLevel, str]:
    """Judge the SM clock; an idle device saves power, so a low clock counts only under load."""
    if sample.clock_ppm < 0 or sample.utilization_ppm < limits.load_ppm:
        return SampleLevel.CALM, ""
    if sample.clock_ppm < limits.clock_over_ppm and _is_shared(sample):
        return (
            SampleLevel.OVER,
            f"SM clock at {_percent(sample.clock_ppm)}, below {format_share(limits.clock_over_ppm)}",
        )
    if sample.clock_ppm < limits.clock_ppm:
        return SampleLevel.HIGH, f"SM clock at {_percent(sample.clock_ppm)}, below {format_share(limits.clock_ppm)}"
    return (SampleLevel.BETWEEN if sample.clock_ppm < limits.clock_calm_ppm else SampleLevel.CALM), ""


def _saturation(sample: GpuSample, limits: ProtectLimits) -> tuple[SampleLevel, str]:
    """Judge the load: a full device is the purpose of sharing, so it only prevents further joins."""
    if sample.utilization_ppm < 0 or sample.sm_activity_ppm < 0 or sample.online_memory_bytes <= 0:
        return SampleLevel.CALM, ""
    if sample.utilization_ppm > limits.utilization_ppm and sample.sm_activity_ppm > limits.sm_activity_ppm:
        busy = f"{_percent(sample.utilization_ppm)} utilization and {_percent(sample.sm_activity_ppm)} SM activity"
        limit = f"{format_share(limits.utilization_ppm)} and {format_share(limits.sm_activity_ppm)}"
        return SampleLevel.HIGH, f"{busy}, above {limit}"
    is_calm = (
        sample.utilization_ppm <= limits.utilization_calm_ppm or sample.sm_activity_ppm <= limits.sm_activity_calm_ppm
    )
    return (SampleLevel.CALM if is_calm else SampleLevel.BETWEEN), ""


def _percent(ppm: int) -> str:
    """Return a measured share with one decimal."""
    return f"{ppm / 10_000:.1f}%"
