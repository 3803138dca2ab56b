"""A sequence of samples of one device and the monitor's transitions, line by line."""

from __future__ import annotations

from collections.abc import Iterator

from cotenant.node.model.protection import GpuSample, GpuWatch, Health, ProtectLimits
from cotenant.node.policy.protect.monitor import disabled, observe, recovered
from cotenant.units.instant import SECOND_NS

GIB = 1 << 30
LIMITS = ProtectLimits()
SILENT = GpuSample()


def sample(
    used: int = 50, clock: int = 100, busy: int = 60, active: int = 30, *, online: int = 4, offline: int = 4
) -> GpuSample:
    """Return a sample of a device of 100 GiB from percentages, and the tenants' memory in GiB."""
    rates = (busy * 10_000, active * 10_000, clock * 10_000)
    return GpuSample(*rates, used * GIB, 100 * GIB, online * GIB, offline * GIB)


GOOD = sample()
PHASES: tuple[tuple[str, GpuSample | None, int], ...] = (
    ("nothing that would be transitions", SILENT, 2),
    ("a busy device and an online tenant", sample(busy=90), 60),
    ("memory high, though not for long", sample(used=97), 4),
    ("a busy device and an online tenant", GOOD, 1),
    ("memory high", sample(used=97), 8),
    ("memory between calm and high", sample(used=93), 60),
    ("calm", GOOD, 12),
    ("full in time and in space beside an online tenant", sample(busy=100, active=99), 10),
    ("calm", GOOD, 12),
    ("full in time and in space, offline only", sample(busy=100, active=99, online=0), 10),
    ("a slow clock at rest", sample(clock=20, busy=3), 10),
    ("a slow clock under load", sample(clock=40), 12),
    ("offline has gone, the clock recovers", sample(offline=0), 60),
    ("memory over the limit", sample(used=99), 12),
    ("offline has gone", sample(used=60, offline=0), 90),
    ("memory over the limit, online alone", sample(used=99, offline=0), 30),
    ("calm", GOOD, 12),
    ("memory over the limit", sample(used=99), 12),
    ("offline has gone", sample(used=60, offline=0), 60),
    ("the device falls off the bus", None, 3),
    ("it is high from the start", sample(used=97), 8),
    ("calm", GOOD, 12),
)


def transitions() -> Iterator[str]:
    """Yield a line for each change: the second, the phase, the health before and after, and the reason."""
    watch, second, is_lost = GpuWatch(), 0, False
    for phase, gpu_sample, seconds in PHASES:
        for _ in range(seconds):
            before, now = watch, second * SECOND_NS
            if gpu_sample is None:
                watch, is_lost = disabled(watch, "it fell off the bus", now), True
            elif is_lost:
                watch, is_lost = recovered(watch, now), False
            if gpu_sample is not None:
                watch = observe(watch, gpu_sample, LIMITS, now)
            if watch.health is not before.health:
                yield _line(second, phase, before.health, watch)
            second += 1
    yield f"{second:>5} s  the end: {watch.health.value}, {len(watch.evictions)} evictions"


def _line(second: int, phase: str, before: Health, watch: GpuWatch) -> str:
    return f"{second:>5} s  {phase}: {before.value} -> {watch.health.value}, {watch.why}"
