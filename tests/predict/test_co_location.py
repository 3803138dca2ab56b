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
def test_every_answer_is_finite_and_lies_in_its_interval(uses: list[Use | None], law: Law) -> None:
    reported = slowdowns(uses, law)
    assert len(reported) == len(uses)
    for one in reported:
        assert 1 - 1e-9 <= one.low <= one.point <= one.high < math.inf
    assert reported == slowdowns(uses, law)


@given(PARTS, PARTS)
@settings(deadline=None)
def test_two_that_take_turns_are_slowed_as_mean_value_analysis_has_it(one: float, other: float) -> None:
    # One customer of each class at one station of processor sharing: exact.
    assert points_of([Use(one), Use(other)], Law()) == pytest.approx([1 + one * other] * 2)


@given(USES, USES, LAWS)
@settings(deadline=None)
def test_nothing_known_is_never_better_than_something(one: Use, other: Use, law: Law) -> None:
    known, unknown = slowdowns([one, other], law)[0], slowdowns([one, None], law)[0]
    if not law.turn:
        assert known.point <= unknown.point * (1 + 1e-9)
    assert slowdowns([one, UNKNOWN], law)[0].point == unknown.point
    assert slowdowns([one, UNKNOWN], law)[0].high <= unknown.high


def test_an_unknown_tenant_is_taken_to_have_kernels_as_long_as_the_longest_known() -> None:
    short, long = Use(1.0, kernel_ns=1_000), Use(1.0, kernel_ns=100_000)
    law = Law(turn=1.0)
    beside = points_of([short, long, UNKNOWN], law)
    assert beside[:2] == points_of([short, long, Use(1.0, kernel_ns=100_000)], law)[:2]
    assert beside[2] >= 3 - 1e-9  # the unknown one loses at least its part


@given(st.lists(USES, min_size=2, max_size=5), USES)
@settings(deadline=None)
def test_one_more_neighbour_helps_no_tenant(uses: list[Use], more: Use) -> None:
    before, after = points_of(uses, Law()), points_of([*uses, more], Law())
    # Schweitzer's approximation scales what a tenant sees by the number of others; allow for its coarseness.
    assert all(now >= 0.9 * then for then, now in zip(before, after, strict=False))


def test_tenants_that_fit_side_by_side_do_not_slow_each_other_and_those_that_do_not_share() -> None:
    half = Use(1.0, ((0.5, 1.0),))
    assert points_of([half, half], Law()) == pytest.approx([1.0, 1.0])
    assert points_of([half, half, half], Law()) == pytest.approx([1.5] * 3)
    assert points_of([Use(1.0), half], Law()) == pytest.approx([1.5, 1.5])
    hungry = Use(1.0, ((0.5, 1.0),), memory=0.9)
    assert points_of([hungry, hungry], Law()) == pytest.approx([1.8, 1.8])  # bandwidth is what is scarce


def test_tenants_held_to_their_parts_meet_only_at_the_memory() -> None:
    parts = [Use(1.0).within(0.3), Use(1.0, ()).within(0.7)]
    assert points_of(parts, Law()) == pytest.approx([1.0, 1.0])
    hungry = [Use(1.0, memory=0.8).within(0.3), Use(1.0, memory=0.8).within(0.7)]
    assert points_of(hungry, Law()) == pytest.approx([1.6, 1.6])


def test_where_kernels_take_turns_the_one_with_short_kernels_waits_more() -> None:
    reported = points_of([Use(1.0, kernel_ns=10_000), Use(1.0, kernel_ns=40_000)], Law(turn=1.0))
    assert reported == pytest.approx([5.0, 1.25])
    assert points_of([Use(1.0, kernel_ns=10_000), Use(1.0, kernel_ns=40_000)], Law()) == pytest.approx([2.0, 2.0])


def test_a_service_that_is_seldom_asked_is_slowed_as_much_and_slows_less() -> None:
    service, training = points_of([Use(1.0, active=0.1), Use(1.0)], Law())
    assert service == pytest.approx(2.0)
    assert training == pytest.approx(1.1)


def test_the_law_behind_the_cases_is_chosen_and_its_doubt_covers_them() -> None:
    rng = np.random.default_rng(3)
    laws = [Law(gain, turn) for gain, turn in itertools.product((0.3, 0.6, 1.0), (0.0, 0.5, 1.0))]
    pairs = [
        [Use(float(one), kernel_ns=float(first)), Use(float(other), kernel_ns=float(second))]
        for one, other, first, second in zip(
            rng.random(300), rng.random(300), rng.integers(1, 99, 300), rng.integers(1, 99, 300), strict=True
        )
    ]
    truth = [one * math.exp(rng.normal(0, 0.1)) for pair in pairs for one in points_of(pair, Law(0.6, 0.5))]
    table = [[one for pair in pairs for one in points_of(pair, law)] for law in laws]
    chosen = choose_law(laws, table, truth)
    assert (chosen.gain, chosen.turn) == (0.6, 0.5)
    reported = [one for pair in pairs for one in slowdowns(pair, chosen)]
    within = sum(one.low / 1.2 <= real <= one.high for one, real in zip(reported, truth, strict=True)) / len(truth)
    assert within > 0.85


@pytest.mark.parametrize("law", [MPS, SLICES])
def test_the_laws_at_hand_slow_a_full_neighbour_by_about_two(law: Law) -> None:
    assert [one.point for one in slowdowns([Use(1.0), Use(1.0)], law)] == pytest.approx([2.0, 2.0])
