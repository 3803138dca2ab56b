"""The exported form of a profile: JSON with named fields and a version."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from cotenant.errors import ConfigError
from cotenant.profile.profile import HISTORY, KernelTiming, LaunchInterval, Profile
from cotenant.units.histogram import Histogram
from cotenant.workload.kernel import Extent, KernelIdentity, WorkKind

VERSION: Final = 1


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The base class of records with named fields."""


class _Histogram(_Record, frozen=True):
    buckets: tuple[tuple[int, int], ...]
    count: int
    total: int
    lowest: int
    highest: int


class _Kernel(_Record, frozen=True):
    function: str
    grid: Extent
    block: Extent
    device_ns: _Histogram
    gap_ns: _Histogram
    launches: int
    shared_bytes: int = 0
    work: WorkKind = WorkKind.KERNEL
    blocks_per_sm: int = 0
    memory_bound: bool | None = None


class _Interval(_Record, frozen=True):
    after: tuple[int, ...]  # indexes into the kernels, the latest last
    host_ns: _Histogram


class _File(_Record, frozen=True):
    format: Literal["cotenant-profile"]
    version: int
    task: str
    device: str
    runs: int
    span_ns: int
    busy_ns: int
    kernels: tuple[_Kernel, ...]
    intervals: tuple[_Interval, ...]


def encode_profile(profile: Profile) -> bytes:
    """Return the profile as indented JSON; `decode_profile` returns the same profile."""
    indexes = {timing.kernel: index for index, timing in enumerate(profile.timings)}
    kernels = tuple(
        _Kernel(
            timing.kernel.function,
            timing.kernel.grid,
            timing.kernel.block,
            _encode_histogram(timing.device),
            _encode_histogram(timing.gap),
            timing.launches,
            timing.kernel.shared_bytes,
            timing.kernel.work,
            timing.blocks_per_sm,
            timing.memory_bound,
        )
        for timing in profile.timings
    )
    intervals = tuple(
        _Interval(tuple(indexes[kernel] for kernel in interval.after), _encode_histogram(interval.host))
        for interval in profile.intervals
        if all(kernel in indexes for kernel in interval.after)
    )
    file = _File(
        "cotenant-profile",
        VERSION,
        profile.task,
        profile.device,
        profile.runs,
        profile.span_ns,
        profile.busy_ns,
        kernels,
        intervals,
    )
    return msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n"


def looks_like_profile(data: bytes) -> bool:
    """Return whether a file is marked as an exported profile."""
    return b'"cotenant-profile"' in data[:200]


def decode_profile(data: bytes, where: str) -> Profile:
    """Return the profile of a file; raise `ConfigError` that names what is wrong."""
    try:
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, ValueError) as error:
        _, _, location = str(error).partition(" - at ")
        problem = str(error) if "unknown field" in str(error) else f"{location or 'the JSON'} has a wrong type or value"
        raise ConfigError("profile", where, f"it cannot be read: {problem}") from None
    if file.version != VERSION:
        raise ConfigError("version", file.version, f"this cotenant reads version {VERSION} of profiles", where=where)
    timings = tuple(_timing(kernel, where) for kernel in file.kernels)
    if len({timing.kernel for timing in timings}) < len(timings):
        raise ConfigError("kernels", where, "contains a kernel twice")
    intervals = []
    for interval in file.intervals:
        if not 1 <= len(interval.after) <= HISTORY or not all(0 <= index < len(timings) for index in interval.after):
            raise ConfigError("after", interval.after, f"must name 1 to {HISTORY} kernels by index", where=where)
        after = tuple(timings[index].kernel for index in interval.after)
        intervals.append(LaunchInterval(after, _decode_histogram(interval.host_ns, where)))
    if min(file.runs, file.span_ns, file.busy_ns) < 0:
        raise ConfigError("runs, span_ns, busy_ns", where, "must not be negative")
    return Profile(file.task, file.device, file.runs, timings, tuple(intervals), file.span_ns, file.busy_ns)


def _encode_histogram(histogram: Histogram) -> _Histogram:
    return _Histogram(histogram.buckets, histogram.count, histogram.total, histogram.lowest, histogram.highest)


def _decode_histogram(record: _Histogram, where: str) -> Histogram:
    histogram = Histogram(record.buckets, record.count, record.total, record.lowest, record.highest)
    if not histogram.sound:
        raise ConfigError("buckets", where, "a histogram is inconsistent; export the profile again")
    return histogram


def _timing(kernel: _Kernel, where: str) -> KernelTiming:
    is_engine = kernel.work in {WorkKind.COPY, WorkKind.MEMSET}  # its grid is a size in KiB, which may be 0
    sides = (kernel.grid[0] + is_engine, *kernel.grid[1:], *kernel.block)
    if min(*sides, kernel.shared_bytes + 1, kernel.launches + 1, kernel.blocks_per_sm + 1) < 1:
        raise ConfigError("kernels", kernel.function, "has an impossible grid, block or count", where=where)
    return KernelTiming(
        KernelIdentity(kernel.function, kernel.grid, kernel.block, kernel.shared_bytes, kernel.work),
        kernel.launches,
        _decode_histogram(kernel.device_ns, where),
        _decode_histogram(kernel.gap_ns, where),
        kernel.blocks_per_sm,
        kernel.memory_bound,
    )
