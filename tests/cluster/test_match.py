"""Tests of matching of jobs and GPUs."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from cotenant import _native
from cotenant.cluster.policy.distinct import match_distinct
from cotenant.cluster.policy.match import Matching, match

counts = st.lists(st.integers(0, 5), min_size=1, max_size=6)


def table(draw_of: int, rows: int, columns: int) -> Any:
    rng = np.random.default_rng(draw_of)
    return np.where(rng.random((rows, columns)) < 0.2, 0, rng.random((rows, columns))).astype(np.float32)


def optimum(weight: Any, jobs: Any, gpus: Any) -> float:
    """By the exact solver, every job and GPU on its own; a pair worth nothing is as good as none."""
    each = np.repeat(np.repeat(weight, jobs, axis=0), gpus, axis=1).astype(float)
    return float(each[linear_sum_assignment(-each)].sum()) if each.size else 0.0


def assert_is_one(found: Matching, weight: Any, jobs: Any, gpus: Any) -> None:
    sources, sinks, so_many = found.pairs.T
    assert (so_many > 0).all()
    assert (weight[sources, sinks] > 0).all()
    assert (np.bincount(sources, so_many, len(jobs)) <= jobs).all()
    assert (np.bincount(sinks, so_many, len(gpus)) <= gpus).all()
    assert found.value == pytest.approx(float((weight[sources, sinks].astype(float) * so_many).sum()))


@given(st.integers(0, 2**32), counts, counts)
def test_matching_is_near_the_optimum_and_below_its_bound(seed: int, jobs: list[int], gpus: list[int]) -> None:
    weight = table(seed, len(jobs), len(gpus))
    found = match(weight, jobs, gpus)
    assert_is_one(found, weight, np.array(jobs), np.array(gpus))
    best = optimum(weight, jobs, gpus)
    assert found.bound >= best - 1e-4
    assert best * 0.999 - 1e-4 <= found.value <= best + 1e-4


@given(st.integers(0, 2**32), counts, counts)
def test_prices_of_another_round_keep_the_gap(seed: int, jobs: list[int], gpus: list[int]) -> None:
    weight = table(seed, len(jobs), len(gpus))
    before = match(table(seed + 1, len(jobs), len(gpus)), jobs, gpus)
    found = match(weight, jobs, gpus, price=before.price)
    assert_is_one(found, weight, np.array(jobs), np.array(gpus))
    best = optimum(weight, jobs, gpus)
    assert best * 0.999 - 1e-4 <= found.value <= best + 1e-4 <= found.bound + 2e-4


@given(st.integers(0, 2**32), st.integers(0, 80), st.integers(0, 80))
def test_bound_holds_for_distinct_jobs_and_gpus(seed: int, jobs: int, gpus: int) -> None:
    weight = table(seed, jobs, gpus)
    found = match_distinct(lambda begin, end: weight[begin:end], jobs, gpus, table_limit=0)
    ones = np.ones(jobs, int), np.ones(gpus, int)
    assert_is_one(found, weight, *ones)
    best = optimum(weight, *ones)
    assert found.bound >= best - 1e-3
    assert best * 0.99 - 1e-3 <= found.value <= best + 1e-3


def test_matching_without_the_whole_table_is_near_the_optimum() -> None:
    """Larger than the sample and the candidates; jobs that are nearly alike want the same GPUs."""
    rng = np.random.default_rng(3)
    need, offer, shy = rng.random(700), rng.random(900), rng.random(900)
    weight = (np.minimum(1, (0.1 + offer) / (0.1 + need[:, None])) * (1 - need[:, None] * shy / 2)).astype(np.float32)
    found = match_distinct(lambda begin, end: weight[begin:end], 700, 900, table_limit=0)
    assert_is_one(found, weight, np.ones(700, int), np.ones(900, int))
    assert found.value >= 0.999 * optimum(weight, np.ones(700, int), np.ones(900, int))
    assert found.part >= 0.99


def test_matching_is_deterministic() -> None:
    weight = table(7, 40, 90)
    one, other = (match(weight, np.full(40, 9), np.full(90, 4)) for _ in range(2))
    assert np.array_equal(one.pairs, other.pairs)
    assert one.value == other.value


def test_tables_of_different_sizes_are_rejected() -> None:
    one: Any = np.ones(1, np.int32)
    price: Any = np.zeros(1, np.float32)
    given: tuple[tuple[Any, Any, Any], ...] = (
        (np.ones(3, np.float32), None, None),
        (price, np.array([0, 1]), np.array([7], "i4")),
    )
    for weight, starts, ends_at in given:
        with pytest.raises(ValueError, match="sizes must agree"):
            _native.match_auction(1, 1, one, one, weight, starts, ends_at, price, 0.1, 10)
