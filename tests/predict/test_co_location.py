"""Tests of predicted slowdowns of co-located tenants."""

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.cluster.model.cluster import OnlineUse
from cotenant.predict.slowdown import interferences, points_of, slowdowns
from cotenant.predict.speed import SpeedPredictor
from cotenant.predict.speed_features import Spot, gpu_side, job_side, pair_facts
from cotenant.predict.speed_model import SharingLaw, rule
from cotenant.predict.speed_parameters import load_parameters
from cotenant.predict.usage import TaskUse
from cotenant.units.share import WHOLE_PPM
from tests.predict.test_speed import spots, uses
from tests.support.effort import examples

WHOLE = TaskUse(WHOLE_PPM, ((WHOLE_PPM, WHOLE_PPM),), 0, 100_000, 100_000, 5_000_000, 5_000_000, WHOLE_PPM)


def other_kernels(kernel_ns: int) -> TaskUse:
    return msgspec.structs.replace(
        WHOLE, kernel_ns=kernel_ns, longest_ns=kernel_ns, round_ns=50 * kernel_ns, round_device_ns=50 * kernel_ns
    )


@pytest.mark.parametrize("is_mps", [True, False])
@settings(max_examples=examples(15, 300), deadline=None)
@given(tenants=st.lists(st.one_of(st.none(), uses()), max_size=6))
def test_slowdown_estimates_are_finite_and_within_their_intervals(tenants: list[TaskUse | None], is_mps: bool) -> None:
    estimates = slowdowns(tenants, is_mps=is_mps)
    assert len(estimates) == len(tenants)
    for estimate in estimates:
        assert 1 - 1e-6 <= estimate.low <= estimate.point <= estimate.high < math.inf
    assert estimates == slowdowns(tenants, is_mps=is_mps)
    points = points_of(tenants, is_mps=is_mps)
    for point, estimate in zip(points, estimates, strict=True):
        assert point >= estimate.point * (1 - 1e-6)
        assert len(tenants) > 2 or point == pytest.approx(estimate.point)


@pytest.mark.parametrize("is_mps", [True, False])
@settings(max_examples=examples(30, 600), deadline=None)
@given(tenants=st.lists(uses() | st.none(), min_size=2, max_size=6))
def test_no_tenant_is_slowed_less_with_another_tenant(tenants: list[TaskUse | None], is_mps: bool) -> None:
    fewer, all_of_them = points_of(tenants[:-1], is_mps=is_mps), points_of(tenants, is_mps=is_mps)
    for before, after in zip(fewer, all_of_them[:-1], strict=True):
        assert after >= before * (1 - 1e-6)  # speeds are rounded to 32 bits


@settings(max_examples=examples(15, 300), deadline=None)
@given(job=uses(), spot=spots())
def test_node_and_cluster_give_the_same_answer(job: TaskUse, spot: Spot) -> None:
    online = [tenant.use for tenant in spot.online]
    speed = float(SpeedPredictor(mode="mps").predict([job], [Spot(spot.online, WHOLE_PPM)]).point[0, 0])
    assert slowdowns([job, *online])[0].point == pytest.approx(1 / speed if online else 1.0, rel=1e-4)


def test_two_full_tenants_take_about_twice_as_long() -> None:
    for is_mps in (True, False):
        assert all(1.6 < slowdown < 3 for slowdown in points_of([WHOLE, WHOLE], is_mps=is_mps))


def test_tenants_of_split_shares_interfere_under_mps_only() -> None:
    apart = slowdowns([WHOLE, WHOLE], shares=(0.5, 0.5))
    assert all(1.03 < estimate.point < 1.25 for estimate in apart)
    assert all(estimate.high > estimate.point > estimate.low for estimate in apart)
    hungry = msgspec.structs.replace(WHOLE, memory_ppm=WHOLE_PPM // 2)
    assert interferences([WHOLE, hungry])[0] > interferences([WHOLE, WHOLE])[0] > 1
    assert interferences([WHOLE, WHOLE], is_mps=False) == [1.0, 1.0]
    assert interferences([WHOLE]) == [1.0]


def test_tenant_with_short_kernels_waits_more_where_kernels_take_turns() -> None:
    short, long = points_of([other_kernels(10_000), other_kernels(80_000)])
    assert short > 1.5 * long
    job, gpu = job_side([other_kernels(10_000)]), gpu_side([spot_of(other_kernels(80_000))])
    facts = pair_facts(job, gpu)
    slower = [-float(rule(job, gpu, facts, SharingLaw(turn=turn)).speed[0, 0]) for turn in (0.0, 0.5, 1.0)]
    assert slower == pytest.approx([math.log(2), math.log(1 + 8**0.5), math.log(9)], rel=1e-6)
    parameters = load_parameters()
    assert parameters.modes["time"].law.turn == 0
    assert parameters.modes["time"].law.interference == 0


def test_unknown_tenant_doubles_the_uncertainty() -> None:
    known, unknown = slowdowns([WHOLE, WHOLE])[0], slowdowns([WHOLE, None])[0]
    assert unknown.high / unknown.point > known.high / known.point


def test_use_within_a_share_takes_as_much_longer_as_its_wide_kernels() -> None:
    use = TaskUse(
        WHOLE_PPM // 2, ((WHOLE_PPM // 4, WHOLE_PPM // 2), (WHOLE_PPM, WHOLE_PPM // 2)), 0, 1_000, 2_000, 8_000, 4_000
    )
    half = use.within(0.5)
    assert half.round_device_ns == 6_000
    assert half.round_ns == 10_000
    assert half.duty_ppm == pytest.approx(600_000, abs=1)
    assert half.widths == ((250_000, 500_000), (500_000, 500_000))
    assert use.within(1.0) is use


def spot_of(use: TaskUse) -> Spot:
    return Spot((OnlineUse("s", use),), WHOLE_PPM)
