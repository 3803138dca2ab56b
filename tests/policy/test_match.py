"""Is a matching one, as good as it claims, and is its bound one?"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from cotenant import _native
from cotenant.policy.place.distinct import match_distinct
from cotenant.policy.place.match import Matching, match

counts = st.lists(st.integers(0, 5), min_size=1, max_size=6)


def table(draw_of: int, rows: int, columns: int) -> Any:
    dice = np.random.default_rng(draw_of)
    return np.where(dice.random((rows, columns)) < 0.2, 0, dice.random((rows, columns))).astype(np.float32)


def optimum(worth: Any, jobs: Any, gpus: Any) -> float:
    """By the exact solver, every job and GPU on its own; a pair worth nothing is as good as none."""
    each = np.repeat(np.repeat(worth, jobs, axis=0), gpus, axis=1).astype(float)
    return float(each[linear_sum_assignment(-each)].sum()) if each.size else 0.0


def assert_is_one(found: Matching, worth: Any, jobs: Any, gpus: Any) -> None:
    sources, sinks, so_many = found.pairs.T
    assert (so_many > 0).all()
    assert (worth[sources, sinks] > 0).all()
    assert (np.bincount(sources, so_many, len(jobs)) <= jobs).all()
    assert (np.bincount(sinks, so_many, len(gpus)) <= gpus).all()
    assert found.value == pytest.approx(float((worth[sources, sinks].astype(float) * so_many).sum()))


@given(st.integers(0, 2**32), counts, counts)
def test_a_matching_is_near_the_optimum_and_its_bound_above_it(seed: int, jobs: list[int], gpus: list[int]) -> None:
    worth = table(seed, len(jobs), len(gpus))
    found = match(worth, jobs, gpus)
    assert_is_one(found, worth, np.array(jobs), np.array(gpus))
    best = optimum(worth, jobs, gpus)
    assert found.bound >= best - 1e-4
    assert best * 0.999 - 1e-4 <= found.value <= best + 1e-4


@given(st.integers(0, 2**32), counts, counts)
def test_to_begin_with_the_prices_of_another_round_changes_no_promise(
    seed: int, jobs: list[int], gpus: list[int]
) -> None:
    worth = table(seed, len(jobs), len(gpus))
    before = match(table(seed + 1, len(jobs), len(gpus)), jobs, gpus)
    found = match(worth, jobs, gpus, price=before.price)
    assert_is_one(found, worth, np.array(jobs), np.array(gpus))
    best = optimum(worth, jobs, gpus)
    assert best * 0.999 - 1e-4 <= found.value <= best + 1e-4 <= found.bound + 2e-4


@given(st.integers(0, 2**32), st.integers(0, 80), st.integers(0, 80))
def test_where_no_two_are_alike_the_bound_still_holds(seed: int, jobs: int, gpus: int) -> None:
    worth = table(seed, jobs, gpus)
    found = match_distinct(lambda begin, end: worth[begin:end], jobs, gpus, held_whole=0)
    ones = np.ones(jobs, int), np.ones(gpus, int)
    assert_is_one(found, worth, *ones)
    best = optimum(worth, *ones)
    assert found.bound >= best - 1e-3
    assert best * 0.99 - 1e-3 <= found.value <= best + 1e-3


def test_a_table_that_is_never_held_is_matched_nearly_as_well() -> None:
    """Larger than the sample and the candidates; jobs that are nearly alike want the same GPUs."""
    dice = np.random.default_rng(3)
    need, offer, shy = dice.random(700), dice.random(900), dice.random(900)
    worth = (np.minimum(1, (0.1 + offer) / (0.1 + need[:, None])) * (1 - need[:, None] * shy / 2)).astype(np.float32)
    found = match_distinct(lambda begin, end: worth[begin:end], 700, 900, held_whole=0)
    assert_is_one(found, worth, np.ones(700, int), np.ones(900, int))
    assert found.value >= 0.999 * optimum(worth, np.ones(700, int), np.ones(900, int))
    assert found.part >= 0.99


def test_the_same_twice_gives_the_same() -> None:
    worth = table(7, 40, 90)
    one, other = (match(worth, np.full(40, 9), np.full(90, 4)) for _ in range(2))
    assert np.array_equal(one.pairs, other.pairs)
    assert one.value == other.value


def test_tables_whose_sizes_disagree_are_refused() -> None:
    one: Any = np.ones(1, np.int32)
    price: Any = np.zeros(1, np.float32)
    given: tuple[tuple[Any, Any, Any], ...] = (
        (np.ones(3, np.float32), None, None),
        (price, np.array([0, 1]), np.array([7], "i4")),
    )
    for worth, starts, ends_at in given:
        with pytest.raises(ValueError, match="sizes must agree"):
            _native.match_auction(1, 1, one, one, worth, starts, ends_at, price, 0.1, 10)
