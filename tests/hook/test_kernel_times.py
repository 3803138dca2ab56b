"""The kernel-time table that the hook reads equals the profile, and any file is read safely."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.gate.launch_estimate import estimate_launch, granularity_of
from cotenant.hook.kernel_times import MAGIC, decode_kernel_times, encode_kernel_times, key_of
from cotenant.profile.profile import KernelTiming, Profile
from cotenant.units.histogram import Recorder
from cotenant.workload.kernel import KernelIdentity, WorkKind
from tests.support.tools import ROOT

TIMES = st.lists(st.integers(0, 10**9), min_size=1, max_size=20)
EXTENTS = st.tuples(*[st.integers(1, 2**16)] * 3)
NAMES = st.text(min_size=1, max_size=300)
KERNELS = st.builds(KernelIdentity, NAMES, EXTENTS, EXTENTS, st.integers(0, 2**17), st.sampled_from(list(WorkKind)))


def timing(kernel: KernelIdentity, times: list[int]) -> KernelTiming:
    recorder = Recorder()
    for time_ns in times:
        recorder.record(time_ns)
    return KernelTiming(kernel, len(times), recorder.histogram())


@given(st.dictionaries(KERNELS, TIMES, max_size=8), st.text(max_size=80))
def test_every_timed_kernel_is_in_the_table(kernels: dict[KernelIdentity, list[int]], device: str) -> None:
    timings = tuple(timing(kernel, times) for kernel, times in kernels.items())
    untimed = KernelTiming(KernelIdentity("never timed", (1, 1, 1), (1, 1, 1)), 3)
    decoded = sorted(decode_kernel_times(encode_kernel_times([Profile("task", device, 1, (*timings, untimed))])))
    assert decoded == sorted(
        (
            key_of(device, entry.kernel),
            round(entry.device.mean),
            entry.device.quantile(0.9),
            entry.device.quantile(0.99),
        )
        for entry in timings
    )


def test_keys_equal_those_of_the_hook() -> None:
    """As native/tests/hook_gate.c computes them."""
    kernel = KernelIdentity("unnamed", (5, 1, 1), (32, 1, 1))
    assert key_of("", kernel) == 0xDB3B73DFE37E22CA
    assert key_of("V100", kernel) != key_of("", kernel)


@given(st.binary(max_size=100))
def test_any_bytes_are_decoded(data: bytes) -> None:
    assert not list(decode_kernel_times(data)) or data.startswith(MAGIC)
    assert len(list(decode_kernel_times(MAGIC + data))) == len(data) // 32


GOLDEN = re.findall(
    r"^GOLDEN\((.*)\)$", (ROOT / "native" / "tests" / "kernel_times_golden.def").read_text("utf-8"), re.MULTILINE
)


@pytest.mark.parametrize("row", GOLDEN)
def test_planned_kernel_times_equal_those_of_the_hook(row: str) -> None:
    """The table of native/tests/hook_kernel_times.c; the hook keeps the granularity as a part of the time, in 2^-16."""
    mean_ns, p90_ns, p99_ns, blocks, blocks_per_sm, sms, expect_ns, sure_ns, granularity_ns = map(int, row.split(","))
    work = estimate_launch(mean_ns, p90_ns, p99_ns, granularity_of(mean_ns, blocks, blocks_per_sm * sms))
    assert (work.expect_ns, work.sure_ns, work.may_fill) == (expect_ns, sure_ns, True)
    assert abs(work.granularity_ns - granularity_ns) <= 1 + expect_ns // 2**16
    assert bool(work.granularity_ns) == bool(granularity_ns)
