"""Reader of ParvaGPU: duration of a batch with 1 to 5 processes of a model in one A100 instance.

Source: MunQ-Lee/ParvaGPU_SC24 (MIT). Rows of zeros were not run or ran out of memory. Throughput is per process; the
latency column is rounded to a millisecond, so the latency here is batch / throughput.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from cotenant.errors import ConfigError
from cotenant.units.table_row import REMEDY, number, table_rows, whole

_COLUMNS: Final = ("model", "mig_gpcs", "batch", "procs", "throughput", "latency_s")

PointName: TypeAlias = tuple[str, int, int]
"""Model, GPCs of the instance, batch."""


class Profiles(msgspec.Struct, frozen=True):
    """Latency in seconds by number of processes, and counts of omitted rows."""

    latency_s: dict[PointName, dict[int, float]]
    not_run: int
    carried_over: int
    """Rows equal to the row of one process fewer to the last digit: filled in, not measured, and omitted."""


def read_profiles(content: bytes, where: str) -> Profiles:
    """Return all measured points, in the order of the file."""
    throughput: dict[PointName, dict[int, float]] = {}
    not_run = 0
    for location, (model, gpcs, batch, procs, rate, latency) in table_rows(content, _COLUMNS, where):
        point = (model, whole(gpcs, "mig_gpcs", location, least=1, most=8), whole(batch, "batch", location, least=1))
        processes = whole(procs, "procs", location, least=1, most=48)
        per_s = number(rate, "throughput", location, least=0)
        number(latency, "latency_s", location, least=0)
        row = throughput.setdefault(point, {})
        if processes in row:
            raise ConfigError("procs", processes, f"occurs twice for {model}; {REMEDY}", where=location)
        row[processes] = per_s
        not_run += per_s == 0
    measured: dict[PointName, dict[int, float]] = {}
    carried_over = 0
    for point, row in throughput.items():
        for processes, per_s in sorted(row.items()):
            if per_s == 0:
                continue
            if row.get(processes - 1) == per_s:
                carried_over += 1
                continue
            measured.setdefault(point, {})[processes] = point[2] / per_s
    return Profiles(latency_s=measured, not_run=not_run, carried_over=carried_over)
