"""Conversion between the load of a tenant and the diurnal profile of its program.

Means and errors of recent windows are not kept: they belong to another hour.
"""

from __future__ import annotations

from cotenant.predict.diurnal_profile import BINS_PER_DAY, MAX_SECONDS, DiurnalBin, DiurnalProfile
from cotenant.predict.load import Bin, Load
from cotenant.units.instant import SECOND_NS, Duration


def diurnal_profile_of(load: Load, period_ns: Duration) -> DiurnalProfile:
    """Return the diurnal profile of a load with windows of this length."""
    if len(load.day) != BINS_PER_DAY:
        return ()
    windows_per_second = SECOND_NS / period_ns
    return tuple(
        DiurnalBin(
            part,
            day_bin.mean * windows_per_second,
            day_bin.days,
            day_bin.day if day_bin.windows else -1,
            day_bin.total / day_bin.windows * windows_per_second if day_bin.windows else 0.0,
            min(day_bin.windows / windows_per_second, MAX_SECONDS),
        )
        for part, day_bin in enumerate(load.day)
        if day_bin.days or day_bin.windows
    )


def load_with(day: DiurnalProfile, period_ns: Duration) -> Load:
    """Return a load without windows, with this diurnal profile."""
    if not day:
        return Load()
    window_s = period_ns / SECOND_NS
    bins = [Bin()] * BINS_PER_DAY
    for day_bin in day:
        windows = max(1, round(day_bin.seconds / window_s)) if day_bin.day >= 0 and day_bin.seconds > 0 else 0
        latest = day_bin.latest * window_s * windows
        bins[day_bin.part] = Bin(
            day_bin.usual * window_s, day_bin.days, day_bin.day if windows else -1, latest, windows
        )
    return Load(day=tuple(bins))


def merged(first: DiurnalProfile, second: DiurnalProfile, today: int) -> DiurnalProfile:
    """Return for each bin the observation of the later day, and of one day the longer one.

    Days in the future count as none: they were observed with a wrong clock.
    """
    parts: dict[int, DiurnalBin] = {}
    for day_bin in (*first, *second):
        best = parts.get(day_bin.part)
        if best is None or _weight(day_bin, today) > _weight(best, today):
            parts[day_bin.part] = day_bin
    return tuple(parts[part] for part in sorted(parts))


def _weight(day_bin: DiurnalBin, today: int) -> tuple[int, float, int, float, float]:
    day = day_bin.day if day_bin.day <= today else -1
    return day, day_bin.seconds, day_bin.days, day_bin.usual, day_bin.latest
