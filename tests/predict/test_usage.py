"""Tests of device use derived from profiles."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given

from cotenant.predict.profile_usage import assumed_use, rounds_of, sms_of, use_of
from cotenant.predict.usage import UNKNOWN, WIDTHS_LIMIT, TaskUse
from cotenant.profile.profile import KernelTiming, Profile
from cotenant.units.histogram import Recorder
from cotenant.units.share import WHOLE_PPM
from cotenant.workload.kernel import KernelIdentity
from tests.profile.test_profile import profiles

US = 1_000


def timing(name: str, blocks: int, launches: int, device_ns: int, gaps_ns: list[int]) -> KernelTiming:
    device, gap = Recorder(), Recorder()
    for _ in range(launches):
        device.record(device_ns)
    for gap_ns in gaps_ns:
        gap.record(gap_ns)
    kernel = KernelIdentity(name, (blocks, 1, 1), (128, 1, 1))
    return KernelTiming(kernel, launches, device.histogram(), gap.histogram(), 1, False)


# Ten requests: two convolutions of 40 blocks, 100 us each, and one matrix product of 800 blocks, 300 us; 50 us of idle
# time after each kernel within a request, and 9 pauses of 1950 us between requests.
SERVICE = Profile(
    "t",
    "Tesla V100-SXM2-16GB",
    1,
    (
        timing("conv", 40, 20, 100 * US, [50 * US] * 20),
        timing("gemm", 800, 10, 300 * US, [1950 * US] * 9),
    ),
    span_ns=10 * 600 * US + 9 * 1950 * US,
    busy_ns=10 * 500 * US,
)


def test_use_of_a_service_excludes_pauses_between_requests() -> None:
    use = use_of(SERVICE, sms_of(SERVICE.device), is_online=True)
    assert use is not None
    assert rounds_of(SERVICE) == 10
    assert use.round_device_ns == pytest.approx(500 * US, rel=0.02)
    assert use.round_ns == pytest.approx(600 * US, rel=0.05)
    assert use.duty_ppm == pytest.approx(5 / 6 * WHOLE_PPM, rel=0.05)
    assert use.active_ppm == pytest.approx(6000 / 23550 * WHOLE_PPM, rel=0.06)
    assert use.widths == ((500_000, 400_000), (1_000_000, 600_000))
    assert use.per_second == pytest.approx(10 / 23.55e-3, rel=0.06)
    assert use.longest_ns == pytest.approx(300 * US, rel=0.02)


def test_use_of_a_training_has_no_pauses() -> None:
    use = use_of(SERVICE, 80, is_online=False)
    assert use is not None
    assert use.active_ppm == WHOLE_PPM
    assert use.round_ns == SERVICE.span_ns // 10
    assert use.duty_ppm == pytest.approx(5000 / 23550 * WHOLE_PPM, rel=0.001)


@pytest.mark.parametrize(
    "name, sms",
    [("Tesla V100-SXM2-16GB", 80), ("NVIDIA A100-SXM4-80GB", 108), ("NVIDIA H100 PCIe", 114),
     ("NVIDIA H100 80GB HBM3", 132), ("NVIDIA L40S", 0), ("NVIDIA L4", 58), ("Tesla T4", 40), ("", 0), ("A1000", 0)],
)  # fmt: skip
def test_device_name_determines_the_number_of_sms(name: str, sms: int) -> None:
    assert sms_of(name) == sms


@given(profiles)
def test_use_of_any_profile_fits_the_wire(profile: Profile) -> None:
    for is_online in (False, True):
        use = use_of(profile, 80, is_online=is_online)
        if use is None:
            continue
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(use), type=TaskUse) == use
        assert len(use.widths) <= WIDTHS_LIMIT
        assert use.round_ns * rounds_of(profile) <= profile.span_ns + rounds_of(profile)


def test_unknown_use_is_assumed_to_be_the_whole_device() -> None:
    assert assumed_use(None) == UNKNOWN
    assert assumed_use(TaskUse()).duty == 1
    assert assumed_use(TaskUse()).widths == UNKNOWN.widths
    assert assumed_use(TaskUse()).active == 1
