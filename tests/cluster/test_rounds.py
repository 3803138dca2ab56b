"""Tests of the plans of every placement policy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from cotenant.cluster.policy import ROUNDS
from cotenant.cluster.policy.round import MAX_FACTOR, MIN_FACTOR, Round, RoundPlan, priority_factors, round_of
from tests.support.effort import examples

SAFE_POLICIES = ("match", "greedy")
WHOLE = 1_000_000


@st.composite
def rounds(draw: st.DrawFn, *, gangs: bool = True) -> Round:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    weight = np.where(rng.random((rows, columns)) < 0.3, 0, rng.random((rows, columns))).astype(np.float32)
    jobs, gpus = draw(st.integers(0, 14)), draw(st.integers(0, 14))
    prepared = round_of(
        weight,
        rng.integers(0, rows, jobs),
        rng.integers(0, columns, gpus),
        node=np.sort(rng.integers(0, 5, gpus)),
        gpus=rng.choice([1, 1, 2, 3], rows) if gangs else None,
        seed=draw(st.integers(0, 9)),
    )
    now = np.where(rng.random(jobs) < 0.2, rng.random(jobs) / 2 + 0.01, 0).astype(np.float32)
    return prepared._replace(
        jobs=prepared.jobs._replace(
            priority=rng.integers(0, draw(st.integers(1, 3)), jobs).astype(np.int32),
            priority_factor=rng.choice(np.array([0.5, 1, 1, 2], np.float32), jobs),
            waited_ns=rng.integers(0, 200_000, jobs) * 1_000_000_000,
            now=now,
        ),
        gpu_kinds=prepared.gpu_kinds._replace(
            offer_ppm=rng.integers(1, WHOLE, columns).astype(np.int32),
            online=rng.integers(0, 2, columns).astype(np.int32),
        ),
        possible=(weight > 0) | (rng.random((rows, columns)) < 0.2),
        barred={0: frozenset({1, 2})} if draw(st.booleans()) else {},
        moves=draw(st.integers(0, 3)),
        price=rng.random(columns).astype(np.float32) if draw(st.booleans()) else None,
    )


def allowed_of(name: str, inputs: Round) -> Any:
    if name in SAFE_POLICIES:
        return inputs.weight > 0
    return inputs.possible & (inputs.gpu_kinds.online == 0) if name == "no-sharing" else inputs.possible


def assert_valid_plan(name: str, inputs: Round, planned: RoundPlan) -> None:
    used_gpus = [gpu for pairing in planned.pairings for gpu in pairing.gpus]
    assert len(used_gpus) == len(set(used_gpus))
    assert len({pairing.job for pairing in planned.pairings}) == len(planned.pairings)
    allowed, moves = allowed_of(name, inputs), 0
    for job, gpus, weight in planned.pairings:
        kind = inputs.jobs.kind[job]
        kinds, nodes = inputs.gpus.kind[list(gpus)], {int(node) for node in inputs.gpus.node[list(gpus)]}
        assert len(gpus) == inputs.job_kinds.gpus[kind]
        assert len(nodes) == 1
        assert allowed[kind][kinds].all()
        assert not nodes & inputs.barred.get(int(kind), frozenset())
        assert weight == pytest.approx(inputs.weight[kind][kinds].min())
        if inputs.jobs.now[job] > 0:
            moves += 1
            assert weight > inputs.jobs.now[job] + inputs.switch - 1e-6
    assert moves <= (inputs.moves if name == "match" else 0)


def unplaced_jobs_that_fit(name: str, inputs: Round, planned: RoundPlan) -> list[int]:
    """Return the waiting jobs that the plan does not place although suitable GPUs are free."""
    free = np.ones(len(inputs.gpus.kind), bool)
    for pairing in planned.pairings:
        free[list(pairing.gpus)] = False
    allowed, placed, unplaced = allowed_of(name, inputs), {pairing.job for pairing in planned.pairings}, []
    for job in np.flatnonzero(inputs.jobs.now <= 0).tolist():
        kind = int(inputs.jobs.kind[job])
        for node in {int(node) for node in inputs.gpus.node} - inputs.barred.get(kind, frozenset()):
            available = (free & (inputs.gpus.node == node) & allowed[kind][inputs.gpus.kind]).sum()
            if job not in placed and available >= inputs.job_kinds.gpus[kind]:
                unplaced.append(job)
    return unplaced


@pytest.mark.parametrize("name", ROUNDS)
@settings(max_examples=examples(25, 2000))
@given(inputs=rounds())
def test_plan_is_valid_and_places_every_job_that_fits(name: str, inputs: Round) -> None:
    planned = ROUNDS[name].plan(inputs)
    assert_valid_plan(name, inputs, planned)
    if not (name == "match" and inputs.price is not None):  # prices of another round may leave a few jobs unplaced
        assert not unplaced_jobs_that_fit(name, inputs, planned)
    assert ROUNDS[name].plan(inputs).pairings == planned.pairings


@settings(max_examples=examples(40, 2000))
@given(rounds(gangs=False))
def test_weight_of_single_jobs_is_near_the_optimum(inputs: Round) -> None:
    zeros = np.zeros_like(inputs.jobs.priority)
    inputs = inputs._replace(
        jobs=inputs.jobs._replace(priority=zeros, now=zeros, priority_factor=zeros + 1, waited_ns=zeros),
        barred={},
        moves=0,
    )
    planned = ROUNDS["match"].plan(inputs)
    weights = inputs.weight[inputs.jobs.kind][:, inputs.gpus.kind].astype(float)
    best = float(weights[linear_sum_assignment(-weights)].sum())
    total = sum(pairing.weight for pairing in planned.pairings)
    assert best * 0.999 - 1e-4 <= total <= best + 1e-4
    assert planned.value == pytest.approx(total, abs=1e-3)
    assert planned.bound >= best - 1e-3


@settings(max_examples=examples(25, 2000))
@given(rounds())
def test_lower_priorities_do_not_affect_higher_ones(inputs: Round) -> None:
    inputs = inputs._replace(jobs=inputs.jobs._replace(now=np.zeros_like(inputs.jobs.now)), price=None)
    top = inputs.jobs.priority.max(initial=0)
    top_jobs = np.flatnonzero(inputs.jobs.priority == top)
    fewer = inputs._replace(jobs=type(inputs.jobs)(*(array[top_jobs] for array in inputs.jobs)))
    for name in ("match", "greedy", "first-fit", "best-fit", "spread"):
        all_pairings = {pairing.job: pairing.gpus for pairing in ROUNDS[name].plan(inputs).pairings}
        top_pairings = {int(top_jobs[pairing.job]): pairing.gpus for pairing in ROUNDS[name].plan(fewer).pairings}
        assert {job: gpus for job, gpus in all_pairings.items() if inputs.jobs.priority[job] == top} == top_pairings


def test_running_job_moves_only_for_more_than_the_cost() -> None:
    inputs = round_of([[0.5, 0.65]], [0], [1], moves=4)
    for now, moves in ((0.5, True), (0.6, False)):
        running = inputs._replace(jobs=inputs.jobs._replace(now=np.array([now], np.float32)))
        assert [pairing.gpus for pairing in ROUNDS["match"].plan(running).pairings] == ([(0,)] if moves else [])


def test_waiting_job_precedes_a_move_with_a_smaller_gain() -> None:
    inputs = round_of([[0.9], [0.4]], [0, 1], [0], moves=4)
    inputs = inputs._replace(jobs=inputs.jobs._replace(now=np.array([0.5, 0], np.float32)))
    assert [pairing.job for pairing in ROUNDS["match"].plan(inputs).pairings] == [1]


def test_priority_factor_decides_only_between_jobs_for_the_same_gpu() -> None:
    weight = [[0.9, 0.2], [0.8, 0.7]]
    factors = np.array([1, 2], np.float32)
    scarce, ample = (round_of(weight, [0, 1], kinds) for kinds in ([0], [0, 1]))
    for inputs, without, with_it in ((scarce, {0: (0,)}, {1: (0,)}), (ample, {0: (0,), 1: (1,)}, {0: (0,), 1: (1,)})):
        plans = [
            ROUNDS["match"].plan(inputs),
            ROUNDS["match"].plan(inputs._replace(jobs=inputs.jobs._replace(priority_factor=factors))),
        ]
        assert [{pairing.job: pairing.gpus for pairing in plan.pairings} for plan in plans] == [without, with_it]


def test_gang_takes_the_node_with_the_lowest_prices() -> None:
    # Both nodes are equally suitable; the price shows that other jobs want GPUs of kind 1.
    inputs = round_of(
        [[0.8, 0.8]], [0], [1, 1, 0, 0], node=[0, 0, 1, 1], gpus=[2], price=np.array([0, 0.5], np.float32)
    )
    assert ROUNDS["match"].plan(inputs).pairings[0].gpus == (2, 3)
    assert ROUNDS["match"].plan(inputs._replace(price=None)).pairings[0].gpus == (0, 1)


def test_node_is_reserved_for_a_gang_that_waited_long() -> None:
    hours = 3_600_000_000_000
    for waited, sizes, is_reserved in (
        (31 * hours, [4, 2], True),
        (29 * hours, [4, 2], False),  # with two nodes, a reservation takes half of the cluster
        (7 * hours, [4, *[2] * 49], True),
        (5 * hours, [4, *[2] * 49], False),
        (31 * hours, [2, 2], False),  # no node is large enough for it
        (31 * hours, None, False),
    ):
        inputs = round_of([[0.8], [0.8]], [0, 1, 1, 1], [0, 0, 0], node=[0, 0, 1], gpus=[3, 1])
        inputs = inputs._replace(
            jobs=inputs.jobs._replace(waited_ns=np.array([waited, 0, 0, 0])),
            sizes=None if sizes is None else np.array(sizes),
        )
        placed = {pairing.job: pairing.gpus for pairing in ROUNDS["match"].plan(inputs).pairings}
        assert placed == ({1: (2,)} if is_reserved else {1: (2,), 2: (0,), 3: (1,)})


def test_each_baseline_follows_its_rule() -> None:
    inputs = round_of([[0.5, 0.4, 0.9]], [0], [0, 1, 2, 2], node=[0, 0, 1, 2])
    inputs = inputs._replace(
        gpu_kinds=inputs.gpu_kinds._replace(
            offer_ppm=np.array([WHOLE, WHOLE // 2, WHOLE]), online=np.array([1, 0, 1]), free_bytes=np.array([9, 9, 9])
        ),
        job_kinds=inputs.job_kinds._replace(need_ppm=np.array([WHOLE // 2])),
        jobs=inputs.jobs._replace(kind=np.array([0])),
    )
    firsts = {name: policy.plan(inputs).pairings[0].gpus[0] for name, policy in ROUNDS.items() if name != "random"}
    assert firsts == {
        "match": 2,
        "greedy": 2,
        "first-fit": 0,
        "best-fit": 1,
        "spread": 0,
        "fragmentation": 0,
        "time-sharing": 0,
        "priority-time-sharing": 0,
        "no-sharing": 1,
    }
    assert {ROUNDS["random"].plan(inputs._replace(seed=seed)).pairings[0].gpus[0] for seed in range(40)} == {0, 1, 2, 3}


def test_fragmentation_keeps_whole_nodes_for_gangs() -> None:
    weight = np.array([[0.5, 0.5], [0.5, 0.0]])
    for waiting, kinds, node, first in (
        ([0, 1, 1], [0, 1], [0, 1], 1),  # kind 1 cannot use the second GPU
        ([0, 2, 2], [0, 0, 0], [0, 0, 1], 2),  # kind 2 needs both of node 0
    ):
        table = np.concatenate([weight, weight[:1]])
        inputs = round_of(table, waiting, kinds, node=node, gpus=[1, 1, 2])
        assert ROUNDS["fragmentation"].plan(inputs).pairings[0].gpus == (first,)


@given(st.lists(st.integers(0, 10**15), max_size=8))
def test_priority_factors_are_bounded_and_fall_with_received_time(received: list[int]) -> None:
    factors = priority_factors(received)
    assert ((factors >= MIN_FACTOR) & (factors <= MAX_FACTOR)).all()
    order = np.argsort(received)
    assert (np.diff(factors[order]) <= 0).all()


def test_users_with_less_gpu_time_catch_up() -> None:
    """Place four jobs of two users on one GPU; the pairs of the first user have nearly twice the weight."""
    received = np.zeros(2)
    for _ in range(400):
        inputs = round_of([[1.0], [0.55]], [0, 0, 1, 1], [0])
        priority_factor = priority_factors(received)
        inputs = inputs._replace(jobs=inputs.jobs._replace(priority_factor=priority_factor[inputs.jobs.kind]))
        for pairing in ROUNDS["match"].plan(inputs).pairings:
            received[inputs.jobs.kind[pairing.job]] += 1
    assert received.min() / received.sum() > 0.25
    unfair = ROUNDS["match"].plan(round_of([[1.0], [0.55]], [0, 0, 1, 1], [0])).pairings
    assert [pairing.job for pairing in unfair] == [0]
