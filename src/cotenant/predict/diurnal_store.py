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
    a_second = SECOND_NS / period_ns
    return tuple(
        DiurnalBin(
            part,
            one.mean * a_second,
            one.days,
            one.day if one.windows else -1,
            one.total / one.windows * a_second if one.windows else 0.0,
            min(one.windows / a_second, MAX_SECONDS),
        )
        for part, one in enumerate(load.day)
        if one.days or one.windows
    )


def load_with(day: DiurnalProfile, period_ns: Duration) -> Load:
    """Return a load without windows, with this diurnal profile."""
    if not day:
        return Load()
    a_window = period_ns / SECOND_NS
    bins = [Bin()] * BINS_PER_DAY
    for one in day:
        windows = max(1, round(one.seconds / a_window)) if one.day >= 0 and one.seconds > 0 else 0
        latest = one.latest * a_window * windows
        bins[one.part] = Bin(one.usual * a_window, one.days, one.day if windows else -1, latest, windows)
    return Load(day=tuple(bins))


def merged(one: DiurnalProfile, other: DiurnalProfile, today: int) -> DiurnalProfile:
    """Return for each bin the observation of the later day, and of one day the longer one.

    Days in the future count as none: they were observed with a wrong clock.
    """
    parts: dict[int, DiurnalBin] = {}
    for time in (*one, *other):
        known = parts.get(time.part)
        if known is None or _weight(time, today) > _weight(known, today):
            parts[time.part] = time
    return tuple(parts[part] for part in sorted(parts))


def _weight(time: DiurnalBin, today: int) -> tuple[int, float, int, float, float]:
    day = time.day if time.day <= today else -1
    return day, time.seconds, time.days, time.usual, time.latest
