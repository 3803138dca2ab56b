"""The kernel-time table that the hook reads: how long a program's kernels took in earlier runs."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

from cotenant.profile.profile import KernelTiming, Profile
from cotenant.workload.kernel import KernelIdentity, WorkKind

FILE_NAME: Final = "kernel-times"
MAGIC: Final = b"COTKNOW1"
ENTRIES_LIMIT: Final = 4096
_ENTRY: Final = struct.Struct("<4Q")
_SHAPE: Final = struct.Struct("<8I")
_NAME_BYTES: Final = 2047
_DEVICE_BYTES: Final = 63
_WORK: Final = (WorkKind.KERNEL, WorkKind.GRAPH, WorkKind.COPY, WorkKind.MEMSET)
_FNV_START: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3
_WORD: Final = (1 << 64) - 1


def encode_kernel_times(profiles: Iterable[Profile]) -> bytes:
    """Return the table: mean, p90 and p99 of every timed kernel on every device, the most launched first."""
    timings = [(profile.device, timing) for profile in profiles for timing in profile.timings if timing.device.count]
    timings.sort(key=lambda entry: -entry[1].launches)
    return MAGIC + b"".join(_entry(device, timing) for device, timing in timings[:ENTRIES_LIMIT])


def decode_kernel_times(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield key, mean, p90 and p99 of each entry; nothing if the data is no kernel-time table."""
    if data.startswith(MAGIC):
        whole_bytes = (len(data) - len(MAGIC)) // _ENTRY.size * _ENTRY.size
        yield from _ENTRY.iter_unpack(data[len(MAGIC) : len(MAGIC) + whole_bytes])


def key_of(device: str, kernel: KernelIdentity) -> int:
    """Return the FNV-1a hash of device, function name (both truncated and zero-terminated), shape and kind of work."""
    shape = _SHAPE.pack(*kernel.grid, *kernel.block, kernel.shared_bytes, _WORK.index(kernel.work))
    return _fnv(_text(device, _DEVICE_BYTES) + _text(kernel.function, _NAME_BYTES) + shape)


def _entry(device: str, timing: KernelTiming) -> bytes:
    times = timing.device
    p90_ns, p99_ns = times.quantile(0.9), times.quantile(0.99)
    return _ENTRY.pack(key_of(device, timing.kernel), round(times.mean), p90_ns, p99_ns)


def _text(text: str, limit: int) -> bytes:
    return text.encode("utf-8", "replace")[:limit] + b"\0"


def _fnv(data: bytes) -> int:
    mixed = _FNV_START
    for byte in data:
        mixed = (mixed ^ byte) * _FNV_PRIME & _WORD
    return mixed
