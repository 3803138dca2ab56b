"""Decode a process's record, the shared file of native/hook/timing/record.h, into a profile.

The process may have died at any point, and the tenant can write anything into the file: any bytes give a result, never
an error. Contradicting values are limited to what is possible.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from cotenant.profile.profile import HISTORY, KernelTiming, LaunchInterval, Profile
from cotenant.units.histogram import Histogram, bucket_of
from cotenant.units.value import Value
from cotenant.workload.kernel import KernelIdentity, WorkKind

MAGIC: Final = b"COTREC1\0"
VERSION: Final = 2

_HEADER: Final = struct.Struct("<8s10I11Q64s512s")
_KERNEL: Final = struct.Struct("<2048s10IQ")
_INTERVAL: Final = struct.Struct("<4I")
_OCTAVE_BITS: Final = 4
_BUCKETS: Final = 32 + 31 * 16
_HISTOGRAM: Final = struct.Struct(f"<4Q{_BUCKETS}I")
_NAME_BYTES: Final = 64
_KERNEL_BYTES: Final = _KERNEL.size + 2 * _HISTOGRAM.size
_INTERVAL_BYTES: Final = _INTERVAL.size + _HISTOGRAM.size
KERNELS_AT: Final = 4096
KERNEL_LIMIT: Final = 2048
INTERVALS_AT: Final = KERNELS_AT + KERNEL_LIMIT * _KERNEL_BYTES
INTERVAL_LIMIT: Final = 8192
RING_AT: Final = INTERVALS_AT + INTERVAL_LIMIT * _INTERVAL_BYTES
_WORK: Final = (WorkKind.KERNEL, WorkKind.GRAPH, WorkKind.COPY, WorkKind.MEMSET)

ReadAt: TypeAlias = Callable[[int, int], bytes]
"""Reads bytes of the file: `read_at(offset, length)` returns fewer bytes at the end of the file."""


class Record(Value, frozen=True):
    """The GPU work of one process, as its hook recorded it."""

    profile: Profile
    pid: int = 0
    measuring: bool = False
    """Whether every launch was timed, rather than a sample."""
    calls: int = 0
    unbooked: int = 0
    captured: int = 0
    timed: int = 0
    untimed: int = 0
    allocations: int = 0
    frees: int = 0
    export_tables: int = 0
    unknown: int = 0
    unknown_names: tuple[str, ...] = ()


def decode_record(read_at: ReadAt, task: str) -> Record | None:
    """Return the record of a task's process; None if the file is no record of this version."""
    header = read_at(0, _HEADER.size)
    if len(header) != _HEADER.size:
        return None
    magic, version, header_bytes, kernel_bytes, interval_bytes, *numbers = _HEADER.unpack(header)
    sizes = (version, header_bytes, kernel_bytes, interval_bytes, *numbers[:2])
    if magic != MAGIC or sizes != (VERSION, 4096, _KERNEL_BYTES, _INTERVAL_BYTES, KERNEL_LIMIT, INTERVAL_LIMIT):
        return None
    pid, measuring, kernels, intervals = numbers[2:6]
    counts, (device, names) = numbers[6:17], numbers[17:19]
    calls, unbooked, captured, timed, untimed, allocations, frees, tables, unknown, span_ns, busy_ns = counts
    timings = list(_timings(read_at(KERNELS_AT, min(kernels, KERNEL_LIMIT) * _KERNEL_BYTES)))
    launch_intervals = _intervals(read_at(INTERVALS_AT, min(intervals, INTERVAL_LIMIT) * _INTERVAL_BYTES), timings)
    busy_ns = min(busy_ns, span_ns)
    profile = Profile(task, _text(device), 1, _merged(timings), tuple(launch_intervals), span_ns, busy_ns)
    unknown_names = [_text(names[at : at + _NAME_BYTES]) for at in range(0, len(names), _NAME_BYTES)]
    return Record(
        profile,
        pid,
        bool(measuring),
        calls,
        unbooked,
        captured,
        timed,
        untimed,
        allocations,
        frees,
        tables,
        unknown,
        tuple(name for name in unknown_names if name),
    )


def kernels_of(read_at: ReadAt) -> list[KernelTiming]:
    """Return the kernels of a record; the entries of its trace ring refer to them by index."""
    header = read_at(0, _HEADER.size)
    if len(header) != _HEADER.size or header[: len(MAGIC)] != MAGIC:
        return []
    kernels = _HEADER.unpack(header)[9]
    return list(_timings(read_at(KERNELS_AT, min(kernels, KERNEL_LIMIT) * _KERNEL_BYTES)))


def _timings(data: bytes) -> Iterator[KernelTiming]:
    for at in range(0, len(data) - _KERNEL_BYTES + 1, _KERNEL_BYTES):
        name, *numbers, launches = _KERNEL.unpack_from(data, at)
        grid, block, (shared_bytes, work, blocks_per_sm) = numbers[:3], numbers[3:6], numbers[6:9]
        identity = KernelIdentity(
            _text(name) or "unnamed",
            (grid[0], grid[1], grid[2]),
            (block[0], block[1], block[2]),
            shared_bytes,
            _WORK[work] if work < len(_WORK) else WorkKind.KERNEL,
        )
        device = _histogram(data, at + _KERNEL.size)
        gap = _histogram(data, at + _KERNEL.size + _HISTOGRAM.size)
        yield KernelTiming(identity, max(launches, device.count), device, gap, blocks_per_sm)


def _merged(timings: list[KernelTiming]) -> tuple[KernelTiming, ...]:
    """Merge timings of equal kernels: truncated names may coincide."""
    by_kernel: dict[KernelIdentity, KernelTiming] = {}
    for timing in timings:
        earlier = by_kernel.get(timing.kernel)
        by_kernel[timing.kernel] = timing if earlier is None else earlier.merged(timing)
    return tuple(by_kernel.values())


def _intervals(data: bytes, timings: list[KernelTiming]) -> Iterator[LaunchInterval]:
    by_history: dict[tuple[KernelIdentity, ...], LaunchInterval] = {}
    for at in range(0, len(data) - _INTERVAL_BYTES + 1, _INTERVAL_BYTES):
        numbers = _INTERVAL.unpack_from(data, at)[:HISTORY]
        if any(number > len(timings) for number in numbers):
            continue
        host = _histogram(data, at + _INTERVAL.size)
        after = tuple(timings[number - 1].kernel for number in numbers if number)
        if host.count and after:
            interval = LaunchInterval(after, host)
            by_history[after] = by_history[after].merged(interval) if after in by_history else interval
    yield from by_history.values()


def _histogram(data: bytes, at: int) -> Histogram:
    """Convert the record's coarser buckets: each counts at its middle, limited to the lowest and highest value."""
    _, total, lowest, highest, *counts = _HISTOGRAM.unpack_from(data, at)
    count = sum(counts)
    if not count:
        return Histogram()
    highest = max(lowest, highest)
    buckets: dict[int, int] = {}
    first, last = bucket_of(lowest), bucket_of(highest)
    for number, times in enumerate(counts):
        if times:
            bucket = min(max(bucket_of(_middle(number)), first), last)
            buckets[bucket] = buckets.get(bucket, 0) + times
    ends = [first, last] if count > 1 else [first]
    _place_ends(buckets, ends)
    if count == 1:
        highest = lowest
    total = min(max(total, lowest * count), highest * count)
    if count > 1:  # the lowest and the highest value are separate values
        total = min(max(total, lowest * (count - 1) + highest), highest * (count - 1) + lowest)
    return Histogram(tuple(sorted(buckets.items())), count, total, lowest, highest)


def _place_ends(buckets: dict[int, int], ends: list[int]) -> None:
    """Count the lowest and the highest value, which are known exactly, in their own buckets."""
    for end in ends:
        if end in buckets:
            continue
        nearest = min(buckets, key=lambda bucket: (abs(bucket - end), bucket))
        for bucket in sorted(buckets, key=lambda bucket: abs(bucket - end)):
            if bucket not in ends or buckets[bucket] > 1:
                nearest = bucket
                break
        buckets[nearest] -= 1
        if not buckets[nearest]:
            del buckets[nearest]
        buckets[end] = 1


def _middle(number: int) -> int:
    if number < 2 << _OCTAVE_BITS:
        return number
    shift = (number >> _OCTAVE_BITS) - 1
    lowest = (number - (shift << _OCTAVE_BITS)) << shift
    return lowest + ((1 << shift) - 1) // 2


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "replace")
