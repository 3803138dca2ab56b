"""Every record, whole, torn or hostile, decodes to a value that can be stored."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from cotenant.hook import record
from cotenant.hook.record import decode_record
from cotenant.profile.profile import Profile
from cotenant.workload.kernel import WorkKind

TIMES = st.lists(st.integers(0, 2**36 - 1), max_size=30)


def bucket_of(value: int) -> int:
    """Return the bucket as native/hook/timing/record.h computes it."""
    if value < 32:
        return value
    shift = value.bit_length() - 5
    return min((shift << 4) + (value >> shift), record._BUCKETS - 1)


def histogram(values: Iterable[int]) -> bytes:
    times = list(values)
    counts = [0] * record._BUCKETS
    for value in times:
        counts[bucket_of(value)] += 1
    ends = (min(times), max(times)) if times else (0, 0)
    return record._HISTOGRAM.pack(len(times), sum(times), *ends, *counts)


def header(kernels: int, intervals: int, span_ns: int = 0, busy_ns: int = 0) -> bytes:
    sizes = (
        record.VERSION,
        4096,
        record._KERNEL_BYTES,
        record._INTERVAL_BYTES,
        record.KERNEL_LIMIT,
        record.INTERVAL_LIMIT,
    )
    counts = (5, 0, 0, 0, 0, 0, 0, 0, 1, span_ns, busy_ns)
    packed = record._HEADER.pack(
        record.MAGIC, *sizes, 42, 1, kernels, intervals, *counts, b"V100", b"cuNew".ljust(64, b"\0")
    )
    return packed.ljust(4096, b"\0")


def kernel(name: bytes, work: int, launches: int, device: list[int], gap: list[int]) -> bytes:
    head = record._KERNEL.pack(name, 2, 1, 1, 64, 1, 1, 16, work, 8, 0, launches)
    return head + histogram(device) + histogram(gap)


def front(parts: list[bytes], intervals: int) -> bytes:
    """Return the file up to the last kernel; the intervals are far behind it and are passed separately."""
    return header(len(parts), intervals, 100, 60) + b"".join(parts)


def decode(data: bytes, intervals: bytes = b"") -> record.Record | None:
    def part(at: int, length: int) -> bytes:
        far = at >= record.INTERVALS_AT
        return intervals[at - record.INTERVALS_AT :][:length] if far else data[at : at + length]

    return decode_record(part, "task")


@given(device=TIMES, gap=TIMES, host=TIMES, work=st.integers(0, 3))
def test_complete_record_decodes_to_the_recorded_values(
    device: list[int], gap: list[int], host: list[int], work: int
) -> None:
    interval = struct.pack("<4I", 0, 1, 1, 0) + histogram(host)
    decoded_record = decode(front([kernel(b"gemm", work, len(device), device, gap)], 1), interval)
    assert decoded_record is not None
    assert (decoded_record.pid, decoded_record.measuring, decoded_record.calls, decoded_record.unknown_names) == (
        42,
        True,
        5,
        ("cuNew",),
    )
    [timing] = decoded_record.profile.timings
    assert (timing.kernel.function, timing.kernel.work, timing.blocks_per_sm) == ("gemm", list(WorkKind)[work], 8)
    assert (decoded_record.profile.span_ns, decoded_record.profile.busy_ns, decoded_record.profile.device) == (
        100,
        60,
        "V100",
    )
    for values, decoded in ((device, timing.device), (gap, timing.gap)):
        assert (decoded.count, decoded.total) == (len(values), sum(values))
        assert decoded.sound
        if values:
            assert (decoded.lowest, decoded.highest) == (min(values), max(values))
            exact = sorted(values)[(len(values) - 1) // 2]
            assert abs(decoded.quantile(0.5) - exact) <= exact / 12 + 1
    assert [len(entry.after) for entry in decoded_record.profile.intervals] == ([2] if host else [])


@given(
    data=st.binary(max_size=300),
    at=st.integers(0, 4096 + 3 * record._KERNEL_BYTES),
    cut=st.integers(0, 20_000),
)
def test_any_bytes_decode_to_a_result(data: bytes, at: int, cut: int) -> None:
    assert decode(data) is None
    good = bytearray(front([kernel(b"a", 0, 1, [5], [6])] * 3, 1))
    good[at : at + len(data)] = data
    far = struct.pack("<4I", 1, 2, 3, 0) + histogram([7])
    for torn in ((bytes(good), far + data), (bytes(good[:cut]), far[:cut])):
        decoded = decode(*torn)
        if decoded is None:
            continue
        for timing in decoded.profile.timings:
            assert timing.device.sound
            assert timing.gap.sound
            assert timing.launches >= timing.device.count
        assert all(interval.host.sound for interval in decoded.profile.intervals)
        assert decoded.profile.busy_ns <= decoded.profile.span_ns
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(decoded.profile), type=Profile) == decoded.profile
