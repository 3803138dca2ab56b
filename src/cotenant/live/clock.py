"""What time is it really? The only place that reads a clock."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cotenant.domain.instant import Instant

_OFFSET_BITS: Final = 40
"""Up to 18 minutes: instants of two clocks that got mixed up differ by far more than any duration we reason about."""


class LiveClock:
    """Monotonic nanoseconds plus a random offset, so that an instant of another clock shows at once."""

    __slots__ = ("offset_ns",)

    def __init__(self, offset_ns: int | None = None, not_before: Instant = 0) -> None:
        """Take up a known offset, or make one that starts after `not_before`."""
        if offset_ns is None:
            offset_ns = secrets.randbelow(1 << _OFFSET_BITS) + max(0, not_before - time.monotonic_ns())
        self.offset_ns = offset_ns

    def now(self) -> Instant:
        """The present instant."""
        return time.monotonic_ns() + self.offset_ns


class BootClock:
    """Nanoseconds since the machine was started, its sleep included: whoever slept through a lease has none."""

    def now(self) -> Instant:
        """The present instant."""
        return boot_ns()


def clock_kept_in(file: Path, not_before: Instant) -> LiveClock:
    """The node's clock, which outlives its process: within one boot a restarted node goes on with the same one.

    A node that cannot go on (another boot, a lost file) starts after the last instant its journal knows.
    """
    boot = boot_id()
    try:
        kept = json.loads(file.read_text())
        clock = LiveClock(int(kept["offset_ns"]))
        if kept["boot"] == boot and clock.now() >= not_before:
            return clock
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no file, or not ours to read: a new clock is always right
    clock = LiveClock(not_before=not_before)
    file.write_text(json.dumps({"boot": boot, "offset_ns": clock.offset_ns}))
    return clock


def monotonic_ns() -> Instant:
    """The system's own count, without our offset: what native code and device servers write down."""
    return time.monotonic_ns()


def boot_ns() -> Instant:
    """Since the machine was started, its sleep included: by this the kernel says when a process began."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def thread_ns() -> int:
    """What the calling thread has had of a processor, its waits left out."""
    return time.thread_time_ns()


def unix_ns() -> int:
    """Wall-clock time, for people; no decision depends on it."""
    return time.time_ns()


def wall_ahead_ns() -> int:
    """From `monotonic_ns` to the wall clock, which counts from a midnight (UTC): by it a time of day outlives a boot.

    A wall clock that nobody has set yet may say anything, but no time before 1970.
    """
    return max(time.time_ns() - time.monotonic_ns(), 0)


def rfc3339(unix_time_ns: int) -> str:
    """An instant of the wall clock for programs, to the millisecond; empty where nobody knows it."""
    if not unix_time_ns:
        return ""
    return f"{_calendar(unix_time_ns, time.gmtime, '%Y-%m-%dT%H:%M:%S')}.{unix_time_ns // 10**6 % 1000:03d}Z"


def time_of_day(unix_time_ns: int) -> str:
    """An instant of the wall clock for people, by their own time zone."""
    if not unix_time_ns:
        return "(some time)"
    return f"{_calendar(unix_time_ns, time.localtime, '%Y-%m-%d %H:%M:%S')}.{unix_time_ns // 10**6 % 1000:03d}"


def _calendar(unix_time_ns: int, zone: Callable[[float], time.struct_time], form: str) -> str:
    try:
        return time.strftime(form, zone(unix_time_ns // 10**9))
    except (OverflowError, ValueError, OSError):  # a clock that was set to no year at all
        return "0000-00-00"


def kept_offset(file: Path) -> int | None:
    """From the node's clock to the wall clock, as a node of this boot kept it; None where there is none."""
    try:
        kept = json.loads(file.read_text())
        offset_ns = int(kept["offset_ns"])
        if kept["boot"] != boot_id():
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return time.time_ns() - time.monotonic_ns() - offset_ns


def pause(seconds: float) -> None:
    """Let real time pass between two tries of something outside."""
    time.sleep(seconds)


def boot_id() -> str:
    """Which start of the machine this is: instants and process numbers of another one mean nothing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
