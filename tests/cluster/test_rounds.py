"""What holds for every plan of a round, whatever the policy; and what each of them is for."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from cotenant.cluster.policy import ROUNDS
from cotenant.cluster.policy.round import MAX_FACTOR, MIN_FACTOR, Round, RoundPlan, priority_factors, round_of
from tests.support.effort import examples

FORESEEING = ("match", "greedy")
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


def allowed_of(name: str, one: Round) -> Any:
    if name in FORESEEING:
        return one.weight > 0
    return one.possible & (one.gpu_kinds.online == 0) if name == "no-sharing" else one.possible


def assert_can_be(name: str, one: Round, planned: RoundPlan) -> None:
    taken = [gpu for pairing in planned.pairings for gpu in pairing.gpus]
    assert len(taken) == len(set(taken))
    assert len({pairing.job for pairing in planned.pairings}) == len(planned.pairings)
    allowed, moved = allowed_of(name, one), 0
    for job, gpus, weight in planned.pairings:
        kind = one.jobs.kind[job]
        kinds, nodes = one.gpus.kind[list(gpus)], {int(node) for node in one.gpus.node[list(gpus)]}
        assert len(gpus) == one.job_kinds.gpus[kind]
        assert len(nodes) == 1
        assert allowed[kind][kinds].all()
        assert not nodes & one.barred.get(int(kind), frozenset())
        assert weight == pytest.approx(one.weight[kind][kinds].min())
        if one.jobs.now[job] > 0:
            moved += 1
            assert weight > one.jobs.now[job] + one.switch - 1e-6
    assert moved <= (one.moves if name == "match" else 0)


def could_still_go(name: str, one: Round, planned: RoundPlan) -> list[int]:
    """Jobs that wait though there is room for them."""
    free = np.ones(len(one.gpus.kind), bool)
    for pairing in planned.pairings:
        free[list(pairing.gpus)] = False
    allowed, placed, found = allowed_of(name, one), {pairing.job for pairing in planned.pairings}, []
    for job in np.flatnonzero(one.jobs.now <= 0).tolist():
        kind = int(one.jobs.kind[job])
        for node in {int(node) for node in one.gpus.node} - one.barred.get(kind, frozenset()):
            room = (free & (one.gpus.node == node) & allowed[kind][one.gpus.kind]).sum()
            if job not in placed and room >= one.job_kinds.gpus[kind]:
                found.append(job)
    return found


@pytest.mark.parametrize("name", ROUNDS)
@settings(max_examples=examples(25, 2000))
@given(one=rounds())
def test_plan_is_valid_and_places_every_job_that_fits(name: str, one: Round) -> None:
    planned = ROUNDS[name].plan(one)
    assert_can_be(name, one, planned)
    if not (name == "match" and one.price is not None):  # prices of another world may keep the last few apart
        assert not could_still_go(name, one, planned)
    assert ROUNDS[name].plan(one).pairings == planned.pairings


@settings(max_examples=examples(40, 2000))
@given(rounds(gangs=False))
def test_weight_of_single_jobs_is_near_the_optimum(one: Round) -> None:
    still = np.zeros_like(one.jobs.priority)
    one = one._replace(
        jobs=one.jobs._replace(priority=still, now=still, priority_factor=still + 1, waited_ns=still),
        barred={},
        moves=0,
    )
    planned = ROUNDS["match"].plan(one)
    each = one.weight[one.jobs.kind][:, one.gpus.kind].astype(float)
    best = float(each[linear_sum_assignment(-each)].sum())
    got = sum(pairing.weight for pairing in planned.pairings)
    assert best * 0.999 - 1e-4 <= got <= best + 1e-4
    assert planned.value == pytest.approx(got, abs=1e-3)
    assert planned.bound >= best - 1e-3


@settings(max_examples=examples(25, 2000))
@given(rounds())
def test_lower_priorities_do_not_affect_higher_ones(one: Round) -> None:
    one = one._replace(jobs=one.jobs._replace(now=np.zeros_like(one.jobs.now)), price=None)
    top = one.jobs.priority.max(initial=0)
    alone = np.flatnonzero(one.jobs.priority == top)
    fewer = one._replace(jobs=type(one.jobs)(*(array[alone] for array in one.jobs)))
    for name in ("match", "greedy", "first-fit", "best-fit", "spread"):
        both = {pairing.job: pairing.gpus for pairing in ROUNDS[name].plan(one).pairings}
        only = {int(alone[pairing.job]): pairing.gpus for pairing in ROUNDS[name].plan(fewer).pairings}
        assert {job: gpus for job, gpus in both.items() if one.jobs.priority[job] == top} == only


def test_running_job_moves_only_for_more_than_the_cost() -> None:
    one = round_of([[0.5, 0.65]], [0], [1], moves=4)
    for now, moves in ((0.5, True), (0.6, False)):
        running = one._replace(jobs=one.jobs._replace(now=np.array([now], np.float32)))
        assert [pairing.gpus for pairing in ROUNDS["match"].plan(running).pairings] == ([(0,)] if moves else [])


def test_waiting_job_precedes_a_move_with_a_smaller_gain() -> None:
    one = round_of([[0.9], [0.4]], [0, 1], [0], moves=4)
    one = one._replace(jobs=one.jobs._replace(now=np.array([0.5, 0], np.float32)))
    assert [pairing.job for pairing in ROUNDS["match"].plan(one).pairings] == [1]


def test_priority_factor_decides_only_between_jobs_for_the_same_gpu() -> None:
    weight = [[0.9, 0.2], [0.8, 0.7]]
    lifted = np.array([1, 2], np.float32)
    scarce, ample = (round_of(weight, [0, 1], kinds) for kinds in ([0], [0, 1]))
    for one, without, with_it in ((scarce, {0: (0,)}, {1: (0,)}), (ample, {0: (0,), 1: (1,)}, {0: (0,), 1: (1,)})):
        plans = [
            ROUNDS["match"].plan(one),
            ROUNDS["match"].plan(one._replace(jobs=one.jobs._replace(priority_factor=lifted))),
        ]
        assert [{pairing.job: pairing.gpus for pairing in plan.pairings} for plan in plans] == [without, with_it]


def test_gang_takes_the_node_with_the_lowest_prices() -> None:
    # Two nodes will do alike for it; the price says that GPUs of kind 1 are wanted by others.
    one = round_of([[0.8, 0.8]], [0], [1, 1, 0, 0], node=[0, 0, 1, 1], gpus=[2], price=np.array([0, 0.5], np.float32))
    assert ROUNDS["match"].plan(one).pairings[0].gpus == (2, 3)
    assert ROUNDS["match"].plan(one._replace(price=None)).pairings[0].gpus == (0, 1)


def test_node_is_reserved_for_a_gang_that_waited_long() -> None:
    hours = 3_600_000_000_000
    for waited, sizes, kept in (
        (31 * hours, [4, 2], True),
        (29 * hours, [4, 2], False),  # of two nodes it would be half of all
        (7 * hours, [4, *[2] * 49], True),
        (5 * hours, [4, *[2] * 49], False),
        (31 * hours, [2, 2], False),  # no node is large enough for it
        (31 * hours, None, False),
    ):
        one = round_of([[0.8], [0.8]], [0, 1, 1, 1], [0, 0, 0], node=[0, 0, 1], gpus=[3, 1])
        one = one._replace(
            jobs=one.jobs._replace(waited_ns=np.array([waited, 0, 0, 0])),
            sizes=None if sizes is None else np.array(sizes),
        )
        placed = {pairing.job: pairing.gpus for pairing in ROUNDS["match"].plan(one).pairings}
        assert placed == ({1: (2,)} if kept else {1: (2,), 2: (0,), 3: (1,)})


def test_each_baseline_follows_its_rule() -> None:
    one = round_of([[0.5, 0.4, 0.9]], [0], [0, 1, 2, 2], node=[0, 0, 1, 2])
    one = one._replace(
        gpu_kinds=one.gpu_kinds._replace(
            offer_ppm=np.array([WHOLE, WHOLE // 2, WHOLE]), online=np.array([1, 0, 1]), free_bytes=np.array([9, 9, 9])
        ),
        job_kinds=one.job_kinds._replace(need_ppm=np.array([WHOLE // 2])),
        jobs=one.jobs._replace(kind=np.array([0])),
    )
    firsts = {name: policy.plan(one).pairings[0].gpus[0] for name, policy in ROUNDS.items() if name != "random"}
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
    assert {ROUNDS["random"].plan(one._replace(seed=seed)).pairings[0].gpus[0] for seed in range(40)} == {0, 1, 2, 3}


def test_fragmentation_keeps_whole_nodes_for_gangs() -> None:
    weight = np.array([[0.5, 0.5], [0.5, 0.0]])
    for waiting, kinds, node, first in (
        ([0, 1, 1], [0, 1], [0, 1], 1),  # kind 1 cannot use the second GPU
        ([0, 2, 2], [0, 0, 0], [0, 0, 1], 2),  # kind 2 needs both of node 0
    ):
        table = np.concatenate([weight, weight[:1]])
        one = round_of(table, waiting, kinds, node=node, gpus=[1, 1, 2])
        assert ROUNDS["fragmentation"].plan(one).pairings[0].gpus == (first,)


@given(st.lists(st.tuples(st.integers(0, 10**15), st.integers(1, 1000)), max_size=8))
def test_priority_factors_are_bounded_and_fall_with_received_time(users: list[tuple[int, int]]) -> None:
    received, weight = np.array([user[0] for user in users], float), np.array([user[1] for user in users], float)
    found = priority_factors(received, weight)
    assert ((found >= MIN_FACTOR) & (found <= MAX_FACTOR)).all()
    order = np.argsort(received / weight)
    assert (np.diff(found[order]) <= 0).all()


def test_users_with_less_gpu_time_catch_up() -> None:
    """Four jobs wait at any time, two of each user; one GPU. The pairs of one user are worth twice as much."""
    received = np.zeros(2)
    for _ in range(400):
        one = round_of([[1.0], [0.55]], [0, 0, 1, 1], [0])
        priority_factor = priority_factors(received, np.ones(2))
        one = one._replace(jobs=one.jobs._replace(priority_factor=priority_factor[one.jobs.kind]))
        for pairing in ROUNDS["match"].plan(one).pairings:
            received[one.jobs.kind[pairing.job]] += 1
    assert received.min() / received.sum() > 0.25
    unfair = ROUNDS["match"].plan(round_of([[1.0], [0.55]], [0, 0, 1, 1], [0])).pairings
    assert [pairing.job for pairing in unfair] == [0]
