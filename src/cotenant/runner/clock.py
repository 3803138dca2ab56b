"""The real clocks. No other module reads a clock."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from cotenant.units.instant import Instant

_OFFSET_BYTES: Final = 5
"""Offsets of up to 18 minutes: mixing up the instants of two clocks then gives an obviously wrong duration."""


class LiveClock:
    """Monotonic nanoseconds plus a random offset, so that a mixed-up instant of another clock is noticed."""

    __slots__ = ("offset_ns",)

    def __init__(self, offset_ns: int | None = None, not_before: Instant = 0) -> None:
        """Use this offset, or choose one with which the clock starts after `not_before`."""
        if offset_ns is None:
            offset_ns = int.from_bytes(os.urandom(_OFFSET_BYTES)) + max(0, not_before - time.monotonic_ns())
        self.offset_ns = offset_ns

    def now(self) -> Instant:
        """Return the present instant."""
        return time.monotonic_ns() + self.offset_ns


def load_clock(file: Path, not_before: Instant) -> LiveClock:
    """Return the node's clock; within one boot a restarted node continues the clock of the previous process.

    After another boot or a lost file, a new clock starts after `not_before`, the last instant of the journal.
    """
    boot = boot_id()
    try:
        stored = msgspec.json.decode(file.read_bytes())
        clock = LiveClock(int(stored["offset_ns"]))
        if stored["boot"] == boot and clock.now() >= not_before:
            return clock
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no file, or an unreadable one: a new clock is always correct
    clock = LiveClock(not_before=not_before)
    with contextlib.suppress(OSError):  # on a full disk; the next process then begins a new clock
        file.write_bytes(msgspec.json.encode({"boot": boot, "offset_ns": clock.offset_ns}))
    return clock


def monotonic_ns() -> Instant:
    """Return CLOCK_MONOTONIC without an offset: the clock of native code and of device servers."""
    return time.monotonic_ns()


def boot_ns() -> Instant:
    """Return nanoseconds since boot, including suspend: the clock of process start times in /proc."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def thread_ns() -> int:
    """Return the processor time of the calling thread."""
    return time.thread_time_ns()


def unix_ns() -> int:
    """Return wall-clock time, for people; no decision depends on it."""
    return time.time_ns()


def wall_clock_offset_ns() -> int:
    """Return the difference from `monotonic_ns` to the wall clock, by which a time of day is kept across boots.

    A wall clock that was never set may show any time, but none before 1970.
    """
    return max(time.time_ns() - time.monotonic_ns(), 0)


def rfc3339(unix_time_ns: int) -> str:
    """Return a wall-clock instant as RFC 3339 text with milliseconds; empty for 0, an unknown instant."""
    if not unix_time_ns:
        return ""
    return f"{_calendar(unix_time_ns, time.gmtime, '%Y-%m-%dT%H:%M:%S')}.{unix_time_ns // 10**6 % 1000:03d}Z"


def local_time(unix_time_ns: int) -> str:
    """Return a wall-clock instant as text in the local time zone."""
    if not unix_time_ns:
        return "(unknown time)"
    return f"{_calendar(unix_time_ns, time.localtime, '%Y-%m-%d %H:%M:%S')}.{unix_time_ns // 10**6 % 1000:03d}"


def _calendar(unix_time_ns: int, zone: Callable[[float], time.struct_time], form: str) -> str:
    try:
        return time.strftime(form, zone(unix_time_ns // 10**9))
    except (OverflowError, ValueError, OSError):  # a clock that was set to an impossible year
        return "0000-00-00"


def stored_clock_offset(file: Path) -> int | None:
    """Return the offset from the node's clock to the wall clock; None if no node of this boot stored it."""
    try:
        stored = msgspec.json.decode(file.read_bytes())
        offset_ns = int(stored["offset_ns"])
        if stored["boot"] != boot_id():
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return time.time_ns() - time.monotonic_ns() - offset_ns


def pause(seconds: float) -> None:
    """Sleep between two attempts at something outside this process."""
    time.sleep(seconds)


def boot_id() -> str:
    """Return the identifier of this boot; instants and process numbers of another boot have no meaning."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
