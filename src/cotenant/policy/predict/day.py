"""What of a load outlives the tenancy in which it was seen? The time of day, in requests a second.

The means and errors of the last windows do not: they are of another hour.
"""

from __future__ import annotations

from cotenant.domain.day import MOST_SECONDS, PARTS_OF_A_DAY, Day, TimeOfDay
from cotenant.domain.instant import SECOND_NS, Duration
from cotenant.policy.predict.load import Bin, Load


def day_of(load: Load, period_ns: Duration) -> Day:
    """What a load of windows of this length knows of the day."""
    if len(load.day) != PARTS_OF_A_DAY:
        return ()
    a_second = SECOND_NS / period_ns
    return tuple(
        TimeOfDay(
            part,
            one.mean * a_second,
            one.days,
            one.day if one.windows else -1,
            one.total / one.windows * a_second if one.windows else 0.0,
            min(one.windows / a_second, MOST_SECONDS),
        )
        for part, one in enumerate(load.day)
        if one.days or one.windows
    )


def load_with(day: Day, period_ns: Duration) -> Load:
    """A load that has seen no window yet, and knows the day."""
    if not day:
        return Load()
    a_window = period_ns / SECOND_NS
    bins = [Bin()] * PARTS_OF_A_DAY
    for one in day:
        windows = max(1, round(one.seconds / a_window)) if one.day >= 0 and one.seconds > 0 else 0
        latest = one.latest * a_window * windows
        bins[one.part] = Bin(one.usual * a_window, one.days, one.day if windows else -1, latest, windows)
    return Load(day=tuple(bins))


def merged(one: Day, other: Day, today: int) -> Day:
    """Each part of the day by whoever saw it last, and of those of one day by whoever saw most of it.

    Days to come count as none: the clock was wrong when they were seen.
    """
    parts: dict[int, TimeOfDay] = {}
    for time in (*one, *other):
        known = parts.get(time.part)
        if known is None or _weight(time, today) > _weight(known, today):
            parts[time.part] = time
    return tuple(parts[part] for part in sorted(parts))


def _weight(time: TimeOfDay, today: int) -> tuple[int, float, int, float, float]:
    day = time.day if time.day <= today else -1
    return day, time.seconds, time.days, time.usual, time.latest
