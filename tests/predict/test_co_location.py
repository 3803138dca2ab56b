"""Tests of the forecast of co-located tenants."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.predict.slowdown import MPS, SLICES, UNKNOWN, Law, Use, choose_law, points_of, slowdowns

PARTS = st.floats(0, 1)
USES = st.builds(
    Use,
    PARTS,
    st.lists(st.tuples(PARTS, PARTS), max_size=4).map(tuple),
    PARTS,
    st.one_of(st.just(0.0), st.floats(1, 1e9)),
    PARTS,
)
LAWS = st.builds(Law, st.floats(0, 2), st.floats(0, 1), PARTS, st.floats(0, 3))


@given(st.lists(st.one_of(st.none(), USES), max_size=6), LAWS)
@settings(deadline=None)
def test_slowdown_estimates_are_finite_and_within_their_intervals(uses: list[Use | None], law: Law) -> None:
    estimates = slowdowns(uses, law)
    assert len(estimates) == len(uses)
    for estimate in estimates:
        assert 1 - 1e-9 <= estimate.low <= estimate.point <= estimate.high < math.inf
    assert estimates == slowdowns(uses, law)


@given(PARTS, PARTS)
@settings(deadline=None)
def test_slowdown_of_two_tenants_equals_mean_value_analysis(first_duty: float, second_duty: float) -> None:
    # One customer of each class at one station of processor sharing: exact.
    assert points_of([Use(first_duty), Use(second_duty)], Law()) == pytest.approx([1 + first_duty * second_duty] * 2)


@given(USES, USES, LAWS)
@settings(deadline=None)
def test_unknown_neighbour_is_predicted_to_slow_at_least_as_much_as_a_known_one(
    use: Use, neighbour: Use, law: Law
) -> None:
    known, unknown = slowdowns([use, neighbour], law)[0], slowdowns([use, None], law)[0]
    if not law.turn:
        assert known.point <= unknown.point * (1 + 1e-9)
    assert slowdowns([use, UNKNOWN], law)[0].point == unknown.point
    assert slowdowns([use, UNKNOWN], law)[0].high <= unknown.high


def test_unknown_tenant_is_assumed_to_have_the_longest_known_kernels() -> None:
    short, long = Use(1.0, kernel_ns=1_000), Use(1.0, kernel_ns=100_000)
    law = Law(turn=1.0)
    points = points_of([short, long, UNKNOWN], law)
    assert points[:2] == points_of([short, long, Use(1.0, kernel_ns=100_000)], law)[:2]
    assert points[2] >= 3 - 1e-9  # the unknown one loses at least its part


@given(st.lists(USES, min_size=2, max_size=5), USES)
@settings(deadline=None)
def test_additional_neighbour_never_reduces_slowdown(uses: list[Use], neighbour: Use) -> None:
    before, after = points_of(uses, Law()), points_of([*uses, neighbour], Law())
    # Schweitzer's approximation scales what a tenant sees by the number of others; allow for its coarseness.
    assert all(slowdown >= 0.9 * earlier for earlier, slowdown in zip(before, after, strict=False))


def test_tenants_slow_each_other_only_as_far_as_they_exceed_the_device() -> None:
    half = Use(1.0, ((0.5, 1.0),))
    assert points_of([half, half], Law()) == pytest.approx([1.0, 1.0])
    assert points_of([half, half, half], Law()) == pytest.approx([1.5] * 3)
    assert points_of([Use(1.0), half], Law()) == pytest.approx([1.5, 1.5])
    hungry = Use(1.0, ((0.5, 1.0),), memory=0.9)
    assert points_of([hungry, hungry], Law()) == pytest.approx([1.8, 1.8])  # bandwidth is what is scarce


def test_tenants_limited_to_disjoint_shares_compete_only_for_bandwidth() -> None:
    parts = [Use(1.0).within(0.3), Use(1.0, ()).within(0.7)]
    assert points_of(parts, Law()) == pytest.approx([1.0, 1.0])
    hungry = [Use(1.0, memory=0.8).within(0.3), Use(1.0, memory=0.8).within(0.7)]
    assert points_of(hungry, Law()) == pytest.approx([1.6, 1.6])


def test_tenant_with_short_kernels_waits_more_where_kernels_take_turns() -> None:
    slowed = points_of([Use(1.0, kernel_ns=10_000), Use(1.0, kernel_ns=40_000)], Law(turn=1.0))
    assert slowed == pytest.approx([5.0, 1.25])
    assert points_of([Use(1.0, kernel_ns=10_000), Use(1.0, kernel_ns=40_000)], Law()) == pytest.approx([2.0, 2.0])


def test_service_with_low_load_is_slowed_as_much_and_slows_less() -> None:
    service, training = points_of([Use(1.0, active=0.1), Use(1.0)], Law())
    assert service == pytest.approx(2.0)
    assert training == pytest.approx(1.1)


def test_choose_law_finds_the_true_law_and_its_interval_covers_the_cases() -> None:
    rng = np.random.default_rng(3)
    laws = [Law(gain, turn) for gain, turn in itertools.product((0.3, 0.6, 1.0), (0.0, 0.5, 1.0))]
    pairs = [
        [Use(float(value), kernel_ns=float(first)), Use(float(other), kernel_ns=float(second))]
        for value, other, first, second in zip(
            rng.random(300), rng.random(300), rng.integers(1, 99, 300), rng.integers(1, 99, 300), strict=True
        )
    ]
    truth = [value * math.exp(rng.normal(0, 0.1)) for pair in pairs for value in points_of(pair, Law(0.6, 0.5))]
    table = [[value for pair in pairs for value in points_of(pair, law)] for law in laws]
    chosen = choose_law(laws, table, truth)
    assert (chosen.gain, chosen.turn) == (0.6, 0.5)
    estimates = [value for pair in pairs for value in slowdowns(pair, chosen)]
    covered = sum(
        value.low / 1.2 <= true_value <= value.high for value, true_value in zip(estimates, truth, strict=True)
    ) / len(truth)
    assert covered > 0.85


@pytest.mark.parametrize("law", [MPS, SLICES])
def test_default_laws_predict_a_slowdown_of_two_for_two_full_tenants(law: Law) -> None:
    assert [one.point for one in slowdowns([Use(1.0), Use(1.0)], law)] == pytest.approx([2.0, 2.0])
