"""The D-STACK policy: sizes, order and shares."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.serve.model.event import ModelReady, ModelSpec, QueuedRequest, RequestArrived, Run, RunFinished
from cotenant.serve.model.run_times import RunTime, RunTimes
from cotenant.serve.model.scheduling import ActiveRun, RejectQueued, RunReport, StartRun, View
from cotenant.serve.policy.dstack import Dstack
from cotenant.serve.policy.fairness import Demand, DeviceTimeRecord, fair_shares
from cotenant.serve.policy.goodput import ModelTraffic, goodput
from cotenant.serve.policy.model_state import ModelState
from cotenant.serve.policy.right_size import EFFICACY, THROUGHPUT, RunSize, frontier, right_size, run_sizes
from cotenant.serve.policy.session import choose, plan_of, used
from cotenant.serve.state.model_queue import ModelQueueState
from cotenant.serve.state.server import ServerMachine, ServerSettings

MS = 1_000_000
SECOND = 1000 * MS


def table(all_units: int, cells: dict[tuple[int, int], float]) -> RunTimes:
    times = [RunTime(units, rows, int(ms * MS), int(ms * MS * 1.1)) for (units, rows), ms in sorted(cells.items())]
    return RunTimes(all_units, tuple(times), max(units for units, _ in cells))


CPU = table(2, {(1, 1): 10, (1, 2): 18, (1, 4): 34, (2, 1): 6, (2, 2): 11, (2, 4): 20})


def queue(key: int, times: RunTimes | None = CPU, **more: Any) -> ModelQueueState:
    fields: dict[str, Any] = {"max_batch": 4, "slo_ns": 40 * MS, **more}
    return ModelQueueState(key, ModelSpec(f"m{key}", "1", "test", (), (), **fields), times)


def asked(one: ModelQueueState, request: int, now: int, patience_ms: int = 40, **more: Any) -> QueuedRequest:
    fields = {"rows": 1, "shapes": 0, "priority": 1, **more}
    return QueuedRequest(request, fields["rows"], fields["shapes"], fields["priority"], now, now + patience_ms * MS)


def view(queues: list[ModelQueueState], free: int, now: int = 0, **more: Any) -> View:
    busy = [one for one in queues if one.waiting]
    return View(busy, free, more.pop("units", 2), now, now, tuple(queues), **more)


def ways() -> st.SearchStrategy[list[RunSize]]:
    size = st.builds(
        lambda rows, units, typical: RunSize(rows, units, typical, typical + typical // 10),
        st.integers(1, 32),
        st.integers(1, 100),
        st.integers(1, 10**9),
    )
    return st.lists(size, min_size=1, max_size=20)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 3)), max_size=40))
def test_planning_time_is_between_median_and_99th_percentile(story: list[tuple[int, int]]) -> None:
    one = queue(1)
    state = ModelState(one, 2)
    for in_time, late in story:
        before = state.caution
        state.record_answers(in_time, late)
        state.forget_times()
        assert one.expected_ns(2, 1) < state.high_ns(2, 1) <= one.high_ns(2, 1)
        assert state.caution >= before if not in_time else state.caution <= before or late


def test_caution_falls_with_answers_in_time_and_rises_with_late_ones() -> None:
    state = ModelState(queue(1), 2)
    state.record_answers(500, 0)
    bolder = state.high_ns(1, 1)
    state.record_answers(0, 3)
    state.forget_times()
    assert bolder < state.high_ns(1, 1) == queue(1).high_ns(1, 1)


@given(ways(), st.integers(1, 10**9), st.floats(0, 10_000), st.sampled_from([EFFICACY, THROUGHPUT]))
def test_right_size_is_the_best_allowed_size(given_ways: list[RunSize], slo: int, rate: float, objective: str) -> None:
    found = right_size(given_ways, slo, rate, objective)
    assert found in given_ways
    quick = [one for one in given_ways if one.high_ns * 2 <= slo and one.rows == 1]
    if quick:  # the rule of half the SLO holds whenever a single row satisfies it
        assert found.high_ns * 2 <= slo
    if any(one.high_ns <= slo and one.rows == 1 for one in given_ways):
        assert found.high_ns <= slo


@given(ways())
def test_frontier_omits_only_dominated_sizes(given_ways: list[RunSize]) -> None:
    kept = frontier(given_ways)
    assert set(kept) <= set(given_ways)
    for one in given_ways:
        assert any(best.high_ns <= one.high_ns and best.area_ns <= one.area_ns for best in kept)


def test_both_objectives_are_tried_and_the_winner_is_named() -> None:
    queues = [queue(1), queue(2)]
    objective, planned = choose(queues, [1.0, 1.0], 2)
    plan = plan_of(objective, planned, 2)
    assert objective == EFFICACY  # idle device: efficacy
    assert {one.objective for one in plan.models} == {EFFICACY}
    assert plan.used == pytest.approx(used(planned, 2))
    assert plan.session_ns == 40 * MS
    assert all(one.why and one.runs >= 1 for one in plan.models)
    objective, planned = choose(queues, [70.0, 70.0], 2)
    assert objective == THROUGHPUT
    quick = [one._replace(size=right_size(run_sizes(one.queue, 2), 40 * MS, one.rate, EFFICACY)) for one in planned]
    assert used(planned, 2) < used(quick, 2)


@given(st.floats(0.1, 500), st.floats(1.01, 4))
def test_more_load_never_means_a_larger_part_in_time(rate: float, more: float) -> None:
    size = RunSize(1, 1, 10 * MS, 11 * MS)
    flows = [ModelTraffic(rate * by, 40 * MS, 1, size) for by in (1, more)]
    part, later = (goodput([one], 2) / one.rate for one in flows)
    assert 0 <= later <= part + 1e-9 <= 1 + 2e-9


DEMANDS = st.lists(
    st.builds(Demand, st.integers(1, 6), st.integers(1, 3), st.floats(0.01, 50), st.integers(1, 5)),
    max_size=8,
    unique_by=lambda one: (one.key, one.priority),
)


@given(DEMANDS, st.floats(0.5, 100))
def test_parts_are_within_the_device_by_priority_and_by_weight(demands: list[Demand], units: float) -> None:
    given_parts = fair_shares(demands, units)
    assert len(given_parts) == len(demands)
    total = sum(given_parts.values())
    assert total == pytest.approx(min(units, sum(one.units for one in demands)), rel=1e-6, abs=1e-9)
    hungry = [one for one in demands if given_parts[one.key, one.priority] < one.units - 1e-6]
    for one in hungry:
        mine = given_parts[one.key, one.priority] / one.weight
        for other in demands:
            theirs = given_parts[other.key, other.priority]
            if other.priority > one.priority:
                assert theirs <= 1e-6  # a lower priority gets nothing while a higher one lacks units
            elif other.priority == one.priority:
                assert theirs / other.weight <= mine + 1e-6


def test_recorded_device_time_decays() -> None:
    board = DeviceTimeRecord()
    board.add(1, 100.0)
    assert board.served(1) == 100
    board.turn_over({1: None})
    board.turn_over({1: None})
    assert 0 < board.served(1) < 100
    board.turn_over({2: None})
    assert board.served(1) == 0


def test_the_most_urgent_goes_first_and_takes_what_is_in_time() -> None:
    late, soon = queue(1), queue(2)
    for number in range(3):
        late.add(asked(late, number, 0, 90))
    soon.add(asked(soon, 9, 0, 30))
    found = Dstack().next(view([late, soon], 2))
    assert isinstance(found, StartRun)
    assert (found.key, found.requests) == (2, 1)


def test_late_requests_are_rejected_and_the_next_is_not() -> None:
    one = queue(1)
    one.add(asked(one, 1, 0, 40))
    one.add(asked(one, 2, 36 * MS, 40))
    policy = Dstack()
    policy.forecast(asked(one, 3, 0), one, view([one], 2))
    policy.run_ended(RunReport(1, "m1", 1, 1, 0, 10 * MS, 1, 0, failed=False), view([one], 2, 30 * MS))
    assert policy.next(view([one], 2, 37 * MS)) == RejectQueued(1, 1)
    one.take(1)
    assert isinstance(policy.next(view([one], 2, 37 * MS)), StartRun)


def test_a_model_that_never_ran_is_tried_with_one_request() -> None:
    one = queue(1, None, max_batch=8)
    for number in range(5):
        one.add(asked(one, number, 0))
    assert Dstack().next(view([one], 2)) == StartRun(1, 1, 1, 1)


def test_different_shapes_do_not_share_a_run_and_instances_are_limited() -> None:
    one = queue(1, slo_ns=0, instances=1)
    one.add(QueuedRequest(1, 1, 7, 1, 0, -1))
    one.add(QueuedRequest(2, 1, 8, 1, 0, -1))
    policy = Dstack()
    assert policy.next(view([one], 2)) == StartRun(1, 1, 1, 2)
    one.take(1)
    one.running = 1
    run = ActiveRun(1, 1, 1, 0, 10 * MS)
    assert policy.next(view([one], 1, active_runs=[run])) is None


def test_what_waits_before_it_delays_an_answer_in_the_order_of_running() -> None:
    one, other = queue(1), queue(2)
    policy = Dstack()
    assert policy.forecast(asked(one, 1, 0), one, view([one, other], 2)).wait_ns == 0  # idle: admitted
    policy.run_ended(RunReport(1, "m1", 1, 1, 0, 10 * MS, 1, 0, failed=False), view([one, other], 2))
    runs = [ActiveRun(2, 1, 1, 0, 10 * MS), ActiveRun(2, 1, 1, 0, 10 * MS)]
    policy.run_ended(RunReport(2, "m2", 1, 1, 0, 10 * MS, 1, 0, failed=False), view([one, other], 0))
    busy = policy.forecast(asked(one, 1, 0), one, view([one, other], 0, active_runs=runs)).wait_ns
    assert busy >= 15 * MS
    for number in range(4):
        other.add(asked(other, 10 + number, 0, 20 + number))
    policy.run_ended(RunReport(2, "m2", 1, 1, 0, 10 * MS, 1, 0, failed=False), view([one, other], 0))
    longer = policy.forecast(asked(one, 1, 0), one, view([one, other], 0, active_runs=runs)).wait_ns
    assert longer > busy


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 200)), max_size=12), st.integers(1, 2))
def test_a_choice_is_possible_whatever_waits(waiting: list[tuple[int, int, int]], free: int) -> None:
    queues = [queue(key) for key in (1, 2, 3)]
    for number, (key, rows, patience) in enumerate(waiting):
        queues[key - 1].add(asked(queues[key - 1], number, 0, patience, rows=rows))
    policy = Dstack()
    found = policy.next(view(queues, free))
    if isinstance(found, StartRun):
        chosen = queues[found.key - 1]
        assert 0 < found.units <= free
        assert found.units in chosen.widths
        assert found.rows == sum(one.rows for one in chosen.waiting[: found.requests])
        assert found.requests == 1 or found.rows <= chosen.spec.max_batch
    elif isinstance(found, RejectQueued):
        quickest = queues[found.key - 1].expected_ns(queues[found.key - 1].waiting[0].rows, 2)
        assert quickest > queues[found.key - 1].waiting[0].deadline
    else:
        assert found is None


@settings(max_examples=10)
@given(st.integers(1, 4), st.integers(1, 4))
def test_without_deadlines_the_device_is_filled_by_weight(first: int, second: int) -> None:
    """Two models with permanent backlog get device time in proportion to their weights."""
    server = ServerMachine(ServerSettings(2, schedule="dstack"))
    for key, weight in ((1, first), (2, second)):
        server.handle(ModelReady(queue(key, slo_ns=0, weight=weight).spec, key, CPU), now=0)
    number = 0
    runs: dict[int, tuple[int, Run]] = {}
    had = {1: 0, 2: 0}

    def begin(actions: list[Any], now: int) -> None:
        for one in actions:
            assert isinstance(one, Run)
            lasts = int(queue(1).expected_ns(one.rows, one.units))
            runs[one.run] = (now + lasts, one)
            had[one.key] += one.units * lasts

    now = 0
    for _ in range(400):
        for key in (1, 2):
            while len(server.queues()[key - 1].waiting) < 4:
                number += 1
                begin(server.handle(RequestArrived(number, f"m{key}", 1, 0), now=now), now)
        now, run = min(runs.values(), key=lambda one: one[0])
        del runs[run.run]
        begin(server.handle(RunFinished(run.run, int(queue(1).expected_ns(run.rows, run.units))), now=now), now)
    assert had[1] / first == pytest.approx(had[2] / second, rel=0.15)
