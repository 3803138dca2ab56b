"""Tests of prediction of latency alone."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.predict.kernel_scaling import HostOverlap, analytical_knee_pct, stretch, widths
from cotenant.predict.latency import (
    DEFAULT_PRIOR,
    WIDTHS,
    LogErrorModel,
    Point,
    SurfacePrior,
    columns,
    fit_log_error,
    fit_prior,
    fit_surface,
    nonnegative_least_squares,
)
from cotenant.profile.profile import KernelTiming, Profile
from cotenant.units.estimate import Estimate, around
from cotenant.units.histogram import Recorder
from cotenant.workload.kernel import KernelIdentity, WorkKind

SHARES = st.floats(0.01, 1.0)
POINTS = st.lists(st.builds(Point, SHARES, st.integers(1, 256), st.floats(1e-6, 1e9)), min_size=1, max_size=8)
SMS = 80


@given(POINTS, SHARES, SHARES, st.integers(1, 256), st.integers(1, 256))
@settings(deadline=None)
def test_latency_never_rises_with_the_share_nor_falls_with_the_batch(
    points: list[Point], one: float, other: float, batch: int, more: int
) -> None:
    surface = fit_surface(points)
    few, many = sorted((one, other))
    small, large = sorted((batch, more))
    slack = 1 + 1e-9
    assert surface.latency(many, batch) <= surface.latency(few, batch) * slack
    assert surface.latency(few, small) <= surface.latency(few, large) * slack
    reported = surface.at(few, small)
    assert 0 < reported.low <= reported.point <= reported.high < math.inf
    assert math.isclose(sum(part for _, part in surface.widths(few, small)), 1.0)
    assert all(0 <= width <= 1 for width, _ in surface.widths(few, small))


@given(st.lists(st.floats(0, 1), min_size=len(WIDTHS) + 1, max_size=len(WIDTHS) + 1).filter(lambda one: sum(one) > 0.1))
@settings(deadline=None)
def test_a_program_that_keeps_the_law_is_found_again_from_many_points(mixture: list[float]) -> None:
    places = [(share / 20, batch) for share in range(1, 21) for batch in (1, 2, 4, 8, 32)]
    truth = columns([share for share, _ in places], [batch for _, batch in places]) @ np.array(mixture)
    points = [Point(share, batch, float(one)) for (share, batch), one in zip(places, truth, strict=True)]
    free = SurfacePrior(
        DEFAULT_PRIOR.mixture, (1e6,) * len(DEFAULT_PRIOR.spread), DEFAULT_PRIOR.doubts
    )  # no pull towards what is usual
    surface = fit_surface(points, free)
    assert all(math.isclose(surface.latency(one.share, one.batch), one.latency, rel_tol=1e-3) for one in points)


@given(st.integers(1, 12), st.integers(1, 9), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_least_squares_above_zero_cannot_be_bettered_by_any_one_coordinate(rows: int, wide: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    system, target = rng.random((rows, wide)), rng.random(rows) - 0.3
    found = nonnegative_least_squares(system, target)
    slope = system.T @ (system @ found - target)
    assert (found >= 0).all()
    assert (slope >= -1e-6).all()  # nothing held at 0 would gain by growing
    assert np.abs(slope[found > 0]).max(initial=0.0) < 1e-6  # and nothing else by moving


@pytest.mark.parametrize("points", [[], [Point(1.0, 1, 0.0)], [Point(1.0, 1, math.inf)], [Point(1.0, 0, 1.0)]])
def test_points_that_say_nothing_are_refused(points: list[Point]) -> None:
    with pytest.raises(ValueError, match="at least one point"):
        fit_surface(points)


def test_more_points_make_an_answer_surer_and_nearer() -> None:
    def truth(share: float, batch: int) -> float:
        return 10 * max(1.0, 0.3 * batch / share) + 5

    far = (0.05, 8)
    one = fit_surface([Point(1.0, 1, truth(1.0, 1))])
    three = fit_surface([Point(share, batch, truth(share, batch)) for share, batch in ((1.0, 1), (0.2, 1), (1.0, 8))])
    assert three.at(*far).high / three.at(*far).point < one.at(*far).high / one.at(*far).point
    error = [abs(math.log(each.latency(*far) / truth(*far))) for each in (one, three)]
    assert error[1] < error[0]


def test_the_knee_of_a_fit_is_that_of_the_program_behind_it() -> None:
    points = [Point(share / 20, 1, max(1.0, 0.4 / (share / 20))) for share in range(1, 21)]
    surface = fit_surface(points)
    assert abs(surface.knee_pct(1) - 37) <= 2  # 0.4 / 1.1 of the GPU is within a tenth of the whole
    assert surface.knee_pct(1, (10, 30, 50, 100)) == 50
    assert surface.knee_pct(2) > surface.knee_pct(1)


def test_intervals_learned_from_errors_hold_as_often_as_they_say() -> None:
    rng = np.random.default_rng(7)
    table = [(abs(rng.normal(0, 0.05 + 0.1 * octaves)), octaves, 0.0) for octaves in rng.random(4000) * 3]
    doubt = fit_log_error(table[:2000])
    point = [Point(1.0, 1, 1.0)]
    held = [error <= doubt.at(2**-octaves, 1, point) for error, octaves, _ in table[2000:]]
    assert 0.87 < sum(held) / len(held) < 0.93


def test_what_is_usual_is_the_middle_of_the_programs() -> None:
    places = [(share / 10, batch) for share in range(1, 11) for batch in (1, 4)]
    rows = columns([share for share, _ in places], [batch for _, batch in places])
    programs = []
    for part in (0.2, 0.4, 0.6):
        mixture = np.zeros(len(WIDTHS) + 1)
        mixture[0], mixture[10] = 1 - part, part
        programs.append([Point(*place, float(row @ mixture)) for place, row in zip(places, rows, strict=True)])
    usual = fit_prior(programs, [(1, LogErrorModel(0.1, 0.1, 0.1))])
    assert usual.mixture[0] == pytest.approx(0.6, abs=1e-3)
    assert usual.mixture[10] == pytest.approx(0.4, abs=1e-3)
    assert usual.spread[0] > usual.spread[3] > 0  # they differ in one part more than in another, in which they may


def timing(blocks: int, device_ns: int, launches: int, fits: int, memory: bool | None = None) -> KernelTiming:
    recorder = Recorder()
    for _ in range(launches):
        recorder.record(device_ns)
    kernel = KernelIdentity(f"k{blocks}", (blocks, 1, 1), (128, 1, 1))
    return KernelTiming(kernel, launches, recorder.histogram(), blocks_per_sm=fits, memory_bound=memory)


TIMINGS = st.builds(
    timing,
    st.integers(1, 5000),
    st.integers(0, 10**7),
    st.integers(0, 4),
    st.integers(0, 16),
    st.sampled_from([None, True, False]),
)
PROFILES = st.builds(
    lambda timings, span, busy: Profile("t", timings=tuple(timings), span_ns=span, busy_ns=busy),
    st.lists(TIMINGS, max_size=5),
    st.integers(0, 10**9),
    st.integers(0, 10**9),
)


@given(PROFILES, SHARES, SHARES, st.integers(1, 200))
@settings(deadline=None)
def test_kernels_alone_say_something_monotone_of_any_profile(
    profile: Profile, one: float, other: float, sms: int
) -> None:
    few, many = (stretch(profile, share, sms) for share in sorted((one, other)))
    assert 1 <= many.point <= few.point * (1 + 1e-9)
    for reported in (few, many):
        assert reported.low <= reported.point <= reported.high
    assert 1 <= analytical_knee_pct(profile, sms) <= 100
    assert sum(part for _, part in widths(profile, sms)) == pytest.approx(1.0 if profile.device_ns else 0.0)


def test_a_narrow_kernel_has_a_low_knee_and_a_wide_one_has_none() -> None:
    narrow = Profile("n", timings=(timing(16, 10_000, 10, 2),), span_ns=100_000, busy_ns=100_000)
    wide = Profile("w", timings=(timing(80 * 2 * 50, 10_000, 10, 2),), span_ns=100_000, busy_ns=100_000)
    assert analytical_knee_pct(narrow, SMS) == 10  # 16 blocks, 2 to an SM: 8 of 80 SMs
    assert analytical_knee_pct(wide, SMS) > 85
    assert stretch(wide, 0.5, SMS).point == 2.0
    assert stretch(narrow, 0.5, SMS).point == 1.0


def test_idle_time_hides_what_kernels_take_longer_or_does_not() -> None:
    idle = Profile("i", timings=(timing(1600, 10_000, 10, 2),), span_ns=400_000, busy_ns=100_000)
    reported = stretch(idle, 0.25, SMS)
    assert reported.point == 1.0  # launches run ahead: 4 x 100 us of kernels just fill the 400 us
    assert reported.high > 1.75  # or they do not: 300 us more
    assert stretch(idle, 0.25, SMS, HostOverlap(hidden=0.0)).point == 1.75


def test_copies_do_not_slow_and_unknown_shapes_may() -> None:
    copy = KernelTiming(KernelIdentity("c", (1, 1, 1), (1, 1, 1), work=WorkKind.COPY), 1, timing(1, 100, 1, 1).device)
    assert stretch(Profile("c", timings=(copy,), span_ns=100, busy_ns=100), 0.1, SMS).point == 1.0
    unknown = stretch(Profile("u", timings=(timing(9, 100, 1, 0),), span_ns=100, busy_ns=100), 0.1, SMS)
    assert unknown.low < 1 < unknown.point < unknown.high


@given(st.floats(1e-3, 1e6), st.floats(1, 20), st.floats(0, 2), st.floats(0, 2))
def test_uncertain_factors_are_less_sure_than_each_and_surer_than_both_at_their_ends(
    alone: float, slower: float, one: float, other: float
) -> None:
    first, second = around(alone, one), around(slower, other)
    both = first.by(second)
    slack = 1 + 1e-9
    assert both.point == alone * slower
    assert max(first.high / alone, second.high / slower) <= both.high / both.point * slack
    assert both.high <= first.high * second.high * slack
    assert first.low * second.low <= both.low * slack


@given(st.floats(0, 1e9), st.floats(0, 5), st.floats(-2, 2), st.floats(0, 8))
def test_an_estimate_keeps_its_point_inside_however_it_is_moved(
    point: float, doubt: float, shift: float, scale: float
) -> None:
    reported = around(point, doubt)
    for one in (
        reported,
        reported.moved(shift, scale),
        reported.times(3.0),
        Estimate(0.0, point, point + 1).moved(shift, scale),
    ):
        assert one.low <= one.point * (1 + 1e-9)
        assert one.point <= one.high * (1 + 1e-9)
    wider = reported.moved(0.0, 2.0)
    assert wider.low <= reported.low * (1 + 1e-9)
    assert reported.high <= wider.high * (1 + 1e-9)
