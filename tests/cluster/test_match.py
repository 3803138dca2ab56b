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


def table(seed: int, rows: int, columns: int) -> Any:
    rng = np.random.default_rng(seed)
    return np.where(rng.random((rows, columns)) < 0.2, 0, rng.random((rows, columns))).astype(np.float32)


def optimum(weight: Any, jobs: Any, gpus: Any) -> float:
    """Return the value of the exact solver over all single jobs and GPUs; pairs of weight 0 do not count."""
    weights = np.repeat(np.repeat(weight, jobs, axis=0), gpus, axis=1).astype(float)
    return float(weights[linear_sum_assignment(-weights)].sum()) if weights.size else 0.0


def assert_valid_matching(matching: Matching, weight: Any, jobs: Any, gpus: Any) -> None:
    sources, sinks, count = matching.pairs.T
    assert (count > 0).all()
    assert (weight[sources, sinks] > 0).all()
    assert (np.bincount(sources, count, len(jobs)) <= jobs).all()
    assert (np.bincount(sinks, count, len(gpus)) <= gpus).all()
    assert matching.value == pytest.approx(float((weight[sources, sinks].astype(float) * count).sum()))


@given(st.integers(0, 2**32), counts, counts)
def test_matching_is_near_the_optimum_and_below_its_bound(seed: int, jobs: list[int], gpus: list[int]) -> None:
    weight = table(seed, len(jobs), len(gpus))
    matching = match(weight, jobs, gpus)
    assert_valid_matching(matching, weight, np.array(jobs), np.array(gpus))
    best = optimum(weight, jobs, gpus)
    assert matching.bound >= best - 1e-4
    assert best * 0.999 - 1e-4 <= matching.value <= best + 1e-4


@given(st.integers(0, 2**32), counts, counts)
def test_prices_of_another_round_keep_the_gap(seed: int, jobs: list[int], gpus: list[int]) -> None:
    weight = table(seed, len(jobs), len(gpus))
    previous = match(table(seed + 1, len(jobs), len(gpus)), jobs, gpus)
    matching = match(weight, jobs, gpus, price=previous.price)
    assert_valid_matching(matching, weight, np.array(jobs), np.array(gpus))
    best = optimum(weight, jobs, gpus)
    assert best * 0.999 - 1e-4 <= matching.value <= best + 1e-4 <= matching.bound + 2e-4


@given(st.integers(0, 2**32), st.integers(0, 80), st.integers(0, 80))
def test_bound_holds_for_distinct_jobs_and_gpus(seed: int, jobs: int, gpus: int) -> None:
    weight = table(seed, jobs, gpus)
    matching = match_distinct(lambda begin, end: weight[begin:end], jobs, gpus, table_limit=0)
    ones = np.ones(jobs, int), np.ones(gpus, int)
    assert_valid_matching(matching, weight, *ones)
    best = optimum(weight, *ones)
    assert matching.bound >= best - 1e-3
    assert best * 0.99 - 1e-3 <= matching.value <= best + 1e-3


def test_matching_without_the_whole_table_is_near_the_optimum() -> None:
    """The table exceeds the sample and the candidates, and similar jobs prefer the same GPUs."""
    rng = np.random.default_rng(3)
    need, offer, shy = rng.random(700), rng.random(900), rng.random(900)
    weight = (np.minimum(1, (0.1 + offer) / (0.1 + need[:, None])) * (1 - need[:, None] * shy / 2)).astype(np.float32)
    matching = match_distinct(lambda begin, end: weight[begin:end], 700, 900, table_limit=0)
    assert_valid_matching(matching, weight, np.ones(700, int), np.ones(900, int))
    assert matching.value >= 0.999 * optimum(weight, np.ones(700, int), np.ones(900, int))
    assert matching.part >= 0.99


def test_matching_is_deterministic() -> None:
    weight = table(7, 40, 90)
    first, second = (match(weight, np.full(40, 9), np.full(90, 4)) for _ in range(2))
    assert np.array_equal(first.pairs, second.pairs)
    assert first.value == second.value


def test_tables_of_different_sizes_are_rejected() -> None:
    units: Any = np.ones(1, np.int32)
    price: Any = np.zeros(1, np.float32)
    cases: tuple[tuple[Any, Any, Any], ...] = (
        (np.ones(3, np.float32), None, None),
        (price, np.array([0, 1]), np.array([7], "i4")),
    )
    for weight, starts, ends_at in cases:
        with pytest.raises(ValueError, match="sizes must agree"):
            _native.match_auction(1, 1, units, units, weight, starts, ends_at, price, 0.1, 10)
