"""Which jobs came to Microsoft's Philly? When, how long they ran, on how many GPUs, in which virtual cluster.

Source: msr-fiddle/philly-traces (CC BY 4.0) as the table that petuum/adaptdl made of it (Apache-2.0). A virtual cluster
is taken for a user: the table does not name any.
"""

from __future__ import annotations

import datetime as dt
from typing import Final

from cotenant.errors import ConfigError
from cotenant.format.cluster_csv import TraceJob, checked_job, in_order, seconds, unpacked
from cotenant.format.measured.row import REMEDY, table_rows, whole

_COLUMNS: Final = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")


def read_philly(content: bytes, where: str) -> list[TraceJob]:
    """All of them, from the earliest instant on. Jobs of no length are left out."""
    found: list[tuple[dt.datetime, int, int, str, str]] = []
    for place, (stamp, duration, gpus, _, cluster) in table_rows(unpacked(content, where), _COLUMNS, where):
        try:
            when = dt.datetime.fromisoformat(stamp)
        except ValueError:
            raise ConfigError("timestamp", stamp, f"should be a date and time; {REMEDY}", where=place) from None
        if when.tzinfo is not None:
            raise ConfigError("timestamp", stamp, f"should have no time zone; {REMEDY}", where=place)
        count = whole(gpus, "num_gpus", place, least=1, most=10**6)
        found.append((when, seconds(duration, "duration", place), count, cluster, place))
    first = min((when for when, *_ in found), default=dt.datetime.min)  # noqa: DTZ901  the trace names no zone
    jobs = [
        checked_job(
            TraceJob(f"philly-{number}", f"vc-{cluster}", _since_ns(when, first), work_ns, gpus),
            place,
        )
        for number, (when, work_ns, gpus, cluster, place) in enumerate(found)
        if work_ns
    ]
    return in_order(jobs)


def _since_ns(when: dt.datetime, first: dt.datetime) -> int:
    since = when - first
    return (since.days * 86_400 + since.seconds) * 1_000_000_000
