"""Reader of Microsoft's Philly trace: submission, duration, GPUs and virtual cluster of each job.

Source: msr-fiddle/philly-traces (CC BY 4.0) in the table of petuum/adaptdl (Apache-2.0). The table has no users, so a
virtual cluster is used as one.
"""

from __future__ import annotations

import re
from typing import Final

from cotenant.cluster.sim.table import TraceJob, checked_job, in_order, seconds, unpacked
from cotenant.errors import ConfigError
from cotenant.units.table_row import REMEDY, table_rows, whole

_COLUMNS: Final = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")
_STAMP: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)", re.ASCII)
_SECOND_NS: Final = 1_000_000_000
_DAYS_BEFORE: Final = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
"""Days before each month in a year without a leap day."""


def read_philly(content: bytes, where: str) -> list[TraceJob]:
    """Return all jobs, in time from the earliest instant. Jobs of no length are omitted."""
    rows: list[tuple[int, int, int, str, str]] = []
    for location, (stamp, duration, gpus, _, cluster) in table_rows(unpacked(content, where), _COLUMNS, where):
        count = whole(gpus, "num_gpus", location, least=1, most=10**6)
        rows.append((_instant_s(stamp, location), seconds(duration, "duration", location), count, cluster, location))
    first_s = min((when_s for when_s, *_ in rows), default=0)
    jobs = [
        checked_job(
            TraceJob(f"philly-{number}", f"vc-{cluster}", (when_s - first_s) * _SECOND_NS, work_ns, gpus),
            location,
        )
        for number, (when_s, work_ns, gpus, cluster, location) in enumerate(rows)
        if work_ns
    ]
    return in_order(jobs)


def _instant_s(stamp: str, location: str) -> int:
    """Return seconds since the year 0 of the proleptic Gregorian calendar; the trace names no time zone."""
    matched = _STAMP.fullmatch(stamp)
    year, month, day, hour, minute, second = map(int, matched.groups()) if matched else (0,) * 6
    if not matched or not 1 <= month <= 12 or not 1 <= day <= 31 or hour > 23 or minute > 59 or second > 60:
        raise ConfigError("timestamp", stamp, f"should be like 2017-10-09 07:01:55; {REMEDY}", where=location)
    past = year - (month <= 2)  # counted from March, a leap day is the last day of the year
    days = 365 * year + past // 4 - past // 100 + past // 400 + _DAYS_BEFORE[month - 1] + day
    return ((days * 24 + hour) * 60 + minute) * 60 + second
