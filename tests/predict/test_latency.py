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
    points: list[Point], first_share: float, second_share: float, batch: int, second_batch: int
) -> None:
    surface = fit_surface(points)
    few, many = sorted((first_share, second_share))
    small, large = sorted((batch, second_batch))
    slack = 1 + 1e-9
    assert surface.latency(many, batch) <= surface.latency(few, batch) * slack
    assert surface.latency(few, small) <= surface.latency(few, large) * slack
    estimate = surface.at(few, small)
    assert 0 < estimate.low <= estimate.point <= estimate.high < math.inf
    assert math.isclose(sum(part for _, part in surface.widths(few, small)), 1.0)
    assert all(0 <= width <= 1 for width, _ in surface.widths(few, small))


@given(
    st.lists(st.floats(0, 1), min_size=len(WIDTHS) + 1, max_size=len(WIDTHS) + 1).filter(
        lambda mixture: sum(mixture) > 0.1
    )
)
@settings(deadline=None)
def test_fit_to_many_points_recovers_a_program_of_the_model(mixture: list[float]) -> None:
    grid = [(share / 20, batch) for share in range(1, 21) for batch in (1, 2, 4, 8, 32)]
    truth = columns([share for share, _ in grid], [batch for _, batch in grid]) @ np.array(mixture)
    points = [Point(share, batch, float(value)) for (share, batch), value in zip(grid, truth, strict=True)]
    free = SurfacePrior(
        DEFAULT_PRIOR.mixture, (1e6,) * len(DEFAULT_PRIOR.spread), DEFAULT_PRIOR.doubts
    )  # no pull towards the prior
    surface = fit_surface(points, free)
    assert all(math.isclose(surface.latency(point.share, point.batch), point.latency, rel_tol=1e-3) for point in points)


@given(st.integers(1, 12), st.integers(1, 9), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_nonnegative_least_squares_satisfies_the_optimality_conditions(rows: int, variables: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    system, target = rng.random((rows, variables)), rng.random(rows) - 0.3
    solution = nonnegative_least_squares(system, target)
    slope = system.T @ (system @ solution - target)
    assert (solution >= 0).all()
    assert (slope >= -1e-6).all()  # no variable at 0 would reduce the error by growing
    assert np.abs(slope[solution > 0]).max(initial=0.0) < 1e-6  # and no other one by changing


@pytest.mark.parametrize("points", [[], [Point(1.0, 1, 0.0)], [Point(1.0, 1, math.inf)], [Point(1.0, 0, 1.0)]])
def test_fit_without_a_valid_point_raises(points: list[Point]) -> None:
    with pytest.raises(ValueError, match="at least one point"):
        fit_surface(points)


def test_more_points_reduce_the_interval_and_the_error() -> None:
    def truth(share: float, batch: int) -> float:
        return 10 * max(1.0, 0.3 * batch / share) + 5

    far = (0.05, 8)
    from_one = fit_surface([Point(1.0, 1, truth(1.0, 1))])
    from_three = fit_surface(
        [Point(share, batch, truth(share, batch)) for share, batch in ((1.0, 1), (0.2, 1), (1.0, 8))]
    )
    assert from_three.at(*far).high / from_three.at(*far).point < from_one.at(*far).high / from_one.at(*far).point
    error = [abs(math.log(surface.latency(*far) / truth(*far))) for surface in (from_one, from_three)]
    assert error[1] < error[0]


def test_knee_of_a_fit_is_the_knee_of_the_measured_program() -> None:
    points = [Point(share / 20, 1, max(1.0, 0.4 / (share / 20))) for share in range(1, 21)]
    surface = fit_surface(points)
    assert abs(surface.knee_pct(1) - 37) <= 2  # 0.4 / 1.1 of the GPU is within a tenth of the whole
    assert surface.knee_pct(1, (10, 30, 50, 100)) == 50
    assert surface.knee_pct(2) > surface.knee_pct(1)


def test_intervals_fitted_to_errors_have_the_stated_coverage() -> None:
    rng = np.random.default_rng(7)
    table = [(abs(rng.normal(0, 0.05 + 0.1 * octaves)), octaves, 0.0) for octaves in rng.random(4000) * 3]
    doubt = fit_log_error(table[:2000])
    point = [Point(1.0, 1, 1.0)]
    held = [error <= doubt.at(2**-octaves, 1, point) for error, octaves, _ in table[2000:]]
    assert 0.87 < sum(held) / len(held) < 0.93


def test_prior_is_the_median_program_with_its_spread() -> None:
    grid = [(share / 10, batch) for share in range(1, 11) for batch in (1, 4)]
    rows = columns([share for share, _ in grid], [batch for _, batch in grid])
    programs = []
    for part in (0.2, 0.4, 0.6):
        mixture = np.zeros(len(WIDTHS) + 1)
        mixture[0], mixture[10] = 1 - part, part
        programs.append([Point(*grid_point, float(row @ mixture)) for grid_point, row in zip(grid, rows, strict=True)])
    prior = fit_prior(programs, [(1, LogErrorModel(0.1, 0.1, 0.1))])
    assert prior.mixture[0] == pytest.approx(0.6, abs=1e-3)
    assert prior.mixture[10] == pytest.approx(0.4, abs=1e-3)
    assert prior.spread[0] > prior.spread[3] > 0  # the programs differ in the first part and not in the fourth


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
def test_stretch_of_any_profile_never_rises_with_the_share(
    profile: Profile, first_share: float, second_share: float, sms: int
) -> None:
    few, many = (stretch(profile, share, sms) for share in sorted((first_share, second_share)))
    assert 1 <= many.point <= few.point * (1 + 1e-9)
    for estimate in (few, many):
        assert estimate.low <= estimate.point <= estimate.high
    assert 1 <= analytical_knee_pct(profile, sms) <= 100
    assert sum(part for _, part in widths(profile, sms)) == pytest.approx(1.0 if profile.device_ns else 0.0)


def test_narrow_kernel_has_a_low_knee_and_wide_kernel_has_none() -> None:
    narrow = Profile("n", timings=(timing(16, 10_000, 10, 2),), span_ns=100_000, busy_ns=100_000)
    wide = Profile("w", timings=(timing(80 * 2 * 50, 10_000, 10, 2),), span_ns=100_000, busy_ns=100_000)
    assert analytical_knee_pct(narrow, SMS) == 10  # 16 blocks, 2 to an SM: 8 of 80 SMs
    assert analytical_knee_pct(wide, SMS) > 85
    assert stretch(wide, 0.5, SMS).point == 2.0
    assert stretch(narrow, 0.5, SMS).point == 1.0


def test_idle_time_hides_longer_kernels_as_far_as_launches_overlap() -> None:
    idle = Profile("i", timings=(timing(1600, 10_000, 10, 2),), span_ns=400_000, busy_ns=100_000)
    estimate = stretch(idle, 0.25, SMS)
    assert estimate.point == 1.0  # launches run ahead: 4 x 100 us of kernels just fill the 400 us
    assert estimate.high > 1.75  # or they do not: 300 us more
    assert stretch(idle, 0.25, SMS, HostOverlap(hidden=0.0)).point == 1.75


def test_copies_are_not_stretched_and_unknown_shapes_may_be() -> None:
    copy = KernelTiming(KernelIdentity("c", (1, 1, 1), (1, 1, 1), work=WorkKind.COPY), 1, timing(1, 100, 1, 1).device)
    assert stretch(Profile("c", timings=(copy,), span_ns=100, busy_ns=100), 0.1, SMS).point == 1.0
    unknown = stretch(Profile("u", timings=(timing(9, 100, 1, 0),), span_ns=100, busy_ns=100), 0.1, SMS)
    assert unknown.low < 1 < unknown.point < unknown.high


@given(st.floats(1e-3, 1e6), st.floats(1, 20), st.floats(0, 2), st.floats(0, 2))
def test_interval_of_a_product_is_wider_than_each_factor_and_narrower_than_both(
    alone: float, slower: float, first_doubt: float, second_doubt: float
) -> None:
    first, second = around(alone, first_doubt), around(slower, second_doubt)
    both = first.by(second)
    slack = 1 + 1e-9
    assert both.point == alone * slower
    assert max(first.high / alone, second.high / slower) <= both.high / both.point * slack
    assert both.high <= first.high * second.high * slack
    assert first.low * second.low <= both.low * slack


@given(st.floats(0, 1e9), st.floats(0, 5), st.floats(-2, 2), st.floats(0, 8))
def test_shifted_and_scaled_estimate_keeps_its_point_within_the_interval(
    point: float, doubt: float, shift: float, scale: float
) -> None:
    estimate = around(point, doubt)
    for changed in (
        estimate,
        estimate.moved(shift, scale),
        estimate.times(3.0),
        Estimate(0.0, point, point + 1).moved(shift, scale),
    ):
        assert changed.low <= changed.point * (1 + 1e-9)
        assert changed.point <= changed.high * (1 + 1e-9)
    wider = estimate.moved(0.0, 2.0)
    assert wider.low <= estimate.low * (1 + 1e-9)
    assert estimate.high <= wider.high * (1 + 1e-9)
