"""Reader of kernel tables with one row per launch, in two formats that differ in their header line.

A *timeline* has start, duration and launch time of everything a device did, in microseconds; times are relative. A
*kernel list* (name, class, memory, SMs needed, nanoseconds, as in Orion's profiles) has kernels in launch order only.
Either may have one more column, `ptx`: 1 if the program has PTX of the kernel, 0 if not, nothing if that is unknown.
"""

from __future__ import annotations

import csv
import io
from decimal import Decimal
from typing import Final

from cotenant.errors import ConfigError
from cotenant.workload.kernel import Extent, KernelIdentity, WorkKind
from cotenant.workload.timeline import Activity, Timeline, timeline_of

TIMELINE_COLUMNS: Final = (
    "seq,kind,stream,start_us,dur_us,idle_before_us,launch_us,launch_dur_us,grid,block,regs,smem,blocks_per_sm,"
    "warps_per_sm,occ_pct,name"
)
LIST_COLUMNS: Final = "Name,Profile,Memory_footprint,SM_usage,Duration"
_PTX_COLUMN: Final = ",ptx"
_HAS_PTX: Final = {"1": True, "0": False, "": None}
_WORK: Final = {"kernel": WorkKind.KERNEL, "memcpy": WorkKind.COPY, "memset": WorkKind.MEMSET}
_BOUND: Final = {"1": False, "0": True, "-1": None}
_LIST_THREADS: Final = 1024  # a list contains SMs, not blocks: one block that fills an SM represents each
_NS_PER_US: Final = 1000


def read_kernels(data: bytes, task: str, where: str) -> Timeline:
    """Return the timeline of a table; raise `ConfigError` that names the line."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError("table", where, f"it is not UTF-8 text: {error}") from None
    first = text.partition("\n")[0].strip()
    if first.removesuffix(_PTX_COLUMN) == TIMELINE_COLUMNS:
        activities = _timeline(text, where)
    elif first.removesuffix(_PTX_COLUMN) == LIST_COLUMNS:
        activities = _list(text, where, has_column=first.endswith(_PTX_COLUMN))
    else:
        remedy = f"its first line must be {LIST_COLUMNS!r}, or {TIMELINE_COLUMNS!r}; a last column ptx may be added"
        raise ConfigError("table", where, remedy)
    if not activities:
        raise ConfigError("table", where, "it has a first line and no rows")
    return timeline_of(task, "", 0, activities)


def _timeline(text: str, where: str) -> list[Activity]:
    rows = csv.DictReader(io.StringIO(text))
    try:
        return [_timeline_row(row) for row in rows]
    except (ValueError, ArithmeticError, LookupError, TypeError, csv.Error) as error:
        raise ConfigError("table", where, f"line {rows.line_num} cannot be read: {error}") from None


def _timeline_row(row: dict[str, str]) -> Activity:
    kernel = KernelIdentity(
        row["name"], _extent(row["grid"]), _extent(row["block"]), _count(row["smem"]), _WORK[row["kind"]]
    )
    launch_ns = _ns(row["launch_us"]) if row["launch_us"] else None
    duration_ns = _ns(row["dur_us"])
    if duration_ns < 0:
        raise ValueError(f"a duration of {row['dur_us']} us")
    return Activity(
        *(kernel, int(row["stream"]), _ns(row["start_us"]), duration_ns, launch_ns, _count(row["regs"])),
        has_ptx=_HAS_PTX[row.get("ptx", "").strip()],
    )


def _list(text: str, where: str, *, has_column: bool) -> list[Activity]:
    activities: list[Activity] = []
    at_ns = 0
    for line, row in enumerate(text.splitlines()[1:], start=2):
        if not row.strip():
            continue
        try:
            fields, _, ptx = row.rpartition(",") if has_column else (row, "", "")
            name, bound, _, sms, duration = fields.rsplit(",", 4)  # names contain commas and are not quoted
            duration_ns, blocks = _count(duration), max(_count(sms), 1)
            kernel = KernelIdentity(name, (blocks, 1, 1), (_LIST_THREADS, 1, 1))
            # This many registers make one block fill an SM, so that an SM of the list is one block.
            conditions = (64, 0, _BOUND[bound.strip()], _HAS_PTX[ptx.strip()])
            activities.append(Activity(kernel, 0, at_ns, duration_ns, None, *conditions))
        except (ValueError, ArithmeticError, LookupError) as error:
            raise ConfigError("table", where, f"line {line} cannot be read: {error}") from None
        at_ns += duration_ns
    return activities


def _count(text: str) -> int:
    number = Decimal(text or 0)
    if not 0 <= number < 1 << 63:
        raise ValueError(f"{text} is no count")
    return int(number)


def _extent(text: str) -> Extent:
    if not text:
        return 1, 1, 1
    x, y, z = (int(part) for part in text.split("x"))
    if min(x, y, z) < 1:
        raise ValueError(f"a grid or block of {text}")
    return x, y, z


def _ns(text: str) -> int:
    value = Decimal(text) * _NS_PER_US
    if not value.is_finite() or abs(value) >= 1 << 63:
        raise ValueError(f"{text} is no time in microseconds")
    return int(value.to_integral_value())
