"""The D-STACK policy: sizes, order and shares."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.predict.slowdown import share_interference
from cotenant.serve.model.event import ModelReady, ModelSpec, QueuedRequest, RequestArrived, Run, RunFinished
from cotenant.serve.model.run_times import RunTime, RunTimes
from cotenant.serve.model.scheduling import ActiveRun, RejectQueued, RunReport, StartRun, View, WaitUntil
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


def queue(key: int, times: RunTimes | None = CPU, **overrides: Any) -> ModelQueueState:
    fields: dict[str, Any] = {"max_batch": 4, "slo_ns": 40 * MS, **overrides}
    return ModelQueueState(key, ModelSpec(f"m{key}", "1", "test", (), (), **fields), times)


def queued_request(
    model_queue: ModelQueueState, request: int, now: int, patience_ms: int = 40, **overrides: Any
) -> QueuedRequest:
    fields = {"rows": 1, "shapes": 0, "priority": 1, **overrides}
    return QueuedRequest(request, fields["rows"], fields["shapes"], fields["priority"], now, now + patience_ms * MS)


def view(queues: list[ModelQueueState], free: int, now: int = 0, **overrides: Any) -> View:
    busy = [model_queue for model_queue in queues if model_queue.waiting]
    return View(busy, free, overrides.pop("units", 2), now, now, tuple(queues), **overrides)


def run_size_lists() -> st.SearchStrategy[list[RunSize]]:
    size = st.builds(
        lambda rows, units, typical: RunSize(rows, units, typical, typical + typical // 10),
        st.integers(1, 32),
        st.integers(1, 100),
        st.integers(1, 10**9),
    )
    return st.lists(size, min_size=1, max_size=20)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 3)), max_size=40))
def test_planning_time_is_between_median_and_99th_percentile(outcomes: list[tuple[int, int]]) -> None:
    model_queue = queue(1)
    state = ModelState(model_queue, 2)
    for in_time, late in outcomes:
        previous = state.caution
        state.record_answers(in_time, late)
        state.forget_times()
        assert model_queue.expected_ns(2, 1) < state.high_ns(2, 1) <= model_queue.high_ns(2, 1)
        assert state.caution >= previous if not in_time else state.caution <= previous or late


def test_caution_falls_with_answers_in_time_and_rises_with_late_ones() -> None:
    state = ModelState(queue(1), 2)
    state.record_answers(500, 0)
    bolder = state.high_ns(1, 1)
    state.record_answers(0, 3)
    state.forget_times()
    assert bolder < state.high_ns(1, 1) == queue(1).high_ns(1, 1)


@given(run_size_lists(), st.integers(1, 10**9), st.floats(0, 10_000), st.sampled_from([EFFICACY, THROUGHPUT]))
def test_right_size_is_the_best_allowed_size(sizes: list[RunSize], slo: int, rate: float, objective: str) -> None:
    chosen = right_size(sizes, slo, rate, objective)
    assert chosen in sizes
    single_rows = [size for size in sizes if size.high_ns * 2 <= slo and size.rows == 1]
    if single_rows:  # the rule of half the SLO holds whenever a single row satisfies it
        assert chosen.high_ns * 2 <= slo
    if any(size.high_ns <= slo and size.rows == 1 for size in sizes):
        assert chosen.high_ns <= slo


@given(run_size_lists())
def test_frontier_omits_only_dominated_sizes(sizes: list[RunSize]) -> None:
    optimal = frontier(sizes)
    assert set(optimal) <= set(sizes)
    for size in sizes:
        assert any(best.high_ns <= size.high_ns and best.area_ns <= size.area_ns for best in optimal)


def test_plan_names_the_objective_with_higher_goodput() -> None:
    queues = [queue(1), queue(2)]
    objective, planned = choose(queues, [1.0, 1.0], 2)
    plan = plan_of(objective, planned, 2)
    assert objective == EFFICACY  # idle device: efficacy
    assert {model.objective for model in plan.models} == {EFFICACY}
    assert plan.used == pytest.approx(used(planned, 2))
    assert plan.session_ns == 40 * MS
    assert all(model.why and model.runs >= 1 for model in plan.models)
    objective, planned = choose(queues, [70.0, 70.0], 2)
    assert objective == THROUGHPUT
    efficacy_plan = [
        model._replace(size=right_size(run_sizes(model.queue, 2), 40 * MS, model.rate, EFFICACY)) for model in planned
    ]
    assert used(planned, 2) < used(efficacy_plan, 2)


@given(st.floats(0.1, 500), st.floats(1.01, 4))
def test_fraction_in_time_does_not_rise_with_load(rate: float, factor: float) -> None:
    size = RunSize(1, 1, 10 * MS, 11 * MS)
    flows = [ModelTraffic(rate * scale, 40 * MS, 1, size) for scale in (1, factor)]
    fraction, loaded_fraction = (goodput([flow], 2) / flow.rate for flow in flows)
    assert 0 <= loaded_fraction <= fraction + 1e-9 <= 1 + 2e-9


DEMANDS = st.lists(
    st.builds(Demand, st.integers(1, 6), st.integers(1, 3), st.floats(0.01, 50), st.integers(1, 5)),
    max_size=8,
    unique_by=lambda demand: (demand.key, demand.priority),
)


@given(DEMANDS, st.floats(0.5, 100))
def test_fair_shares_follow_priority_and_weight(demands: list[Demand], units: float) -> None:
    shares = fair_shares(demands, units)
    assert len(shares) == len(demands)
    total = sum(shares.values())
    assert total == pytest.approx(min(units, sum(demand.units for demand in demands)), rel=1e-6, abs=1e-9)
    unsatisfied = [demand for demand in demands if shares[demand.key, demand.priority] < demand.units - 1e-6]
    for demand in unsatisfied:
        own_share = shares[demand.key, demand.priority] / demand.weight
        for other in demands:
            other_share = shares[other.key, other.priority]
            if other.priority > demand.priority:
                assert other_share <= 1e-6  # a lower priority gets nothing while a higher one lacks units
            elif other.priority == demand.priority:
                assert other_share / other.weight <= own_share + 1e-6


def test_recorded_device_time_decays() -> None:
    record = DeviceTimeRecord()
    record.add(1, 100.0)
    assert record.served(1) == 100
    record.turn_over({1: None})
    record.turn_over({1: None})
    assert 0 < record.served(1) < 100
    record.turn_over({2: None})
    assert record.served(1) == 0


def test_most_urgent_queue_starts_first() -> None:
    later, urgent = queue(1), queue(2)
    for number in range(3):
        later.add(queued_request(later, number, 0, 90))
    urgent.add(queued_request(urgent, 9, 0, 30))
    choice = Dstack().next(view([later, urgent], 2))
    assert isinstance(choice, StartRun)
    assert (choice.key, choice.requests) == (2, 1)


def test_late_request_is_rejected_and_the_next_one_starts() -> None:
    model_queue = queue(1)
    model_queue.add(queued_request(model_queue, 1, 0, 40))
    model_queue.add(queued_request(model_queue, 2, 36 * MS, 40))
    policy = Dstack()
    policy.forecast(queued_request(model_queue, 3, 0), model_queue, view([model_queue], 2))
    policy.run_ended(RunReport(1, "m1", 1, 1, 0, 10 * MS, 1, 0, failed=False), view([model_queue], 2, 30 * MS))
    assert policy.next(view([model_queue], 2, 37 * MS)) == RejectQueued(1, 1)
    model_queue.take(1)
    assert isinstance(policy.next(view([model_queue], 2, 37 * MS)), StartRun)


def test_unmeasured_model_starts_with_one_request() -> None:
    model_queue = queue(1, None, max_batch=8)
    for number in range(5):
        model_queue.add(queued_request(model_queue, number, 0))
    assert Dstack().next(view([model_queue], 2)) == StartRun(1, 1, 1, 1)


def test_different_shapes_do_not_share_a_run_and_instances_are_limited() -> None:
    model_queue = queue(1, slo_ns=0, instances=1)
    model_queue.add(QueuedRequest(1, 1, 7, 1, 0, -1))
    model_queue.add(QueuedRequest(2, 1, 8, 1, 0, -1))
    policy = Dstack()
    assert policy.next(view([model_queue], 2)) == StartRun(1, 1, 1, 2)
    model_queue.take(1)
    model_queue.running = 1
    run = ActiveRun(1, 1, 1, 0, 10 * MS)
    assert policy.next(view([model_queue], 1, active_runs=[run])) is None


def run_once(policy: Dstack, queues: list[ModelQueueState]) -> None:
    """Let the policy know a recent run of each model, so that its estimates count."""
    for model_queue in queues:
        policy.forecast(queued_request(model_queue, 0, 0), model_queue, view(queues, 2))
        report = RunReport(model_queue.key, model_queue.spec.name, 1, 1, 0, 10 * MS, 1, 0, failed=False)
        policy.run_ended(report, view(queues, 2))


def test_forecast_is_the_end_of_a_run_on_the_first_free_units() -> None:
    queues = [queue(1), queue(2)]
    policy = Dstack()
    idle = policy.forecast(queued_request(queues[0], 1, 0), queues[0], view(queues, 2))
    assert idle.wait_ns == 0  # admitted, whatever the estimate
    run_once(policy, queues)
    waits = []
    for end_ms in (5, 10, 20):
        runs = [ActiveRun(2, 1, 1, 0, end_ms * MS), ActiveRun(2, 1, 1, 0, end_ms * MS)]
        busy = view(queues, 0, active_runs=runs)
        waits.append(policy.forecast(queued_request(queues[0], 1, 0), queues[0], busy).wait_ns)
    assert waits == [waits[0], waits[0] + 5 * MS, waits[0] + 15 * MS]
    assert waits[0] >= 5 * MS + queues[0].expected_ns(1, 2)


def test_request_is_refused_when_the_whole_device_could_not_answer_those_before_it() -> None:
    model_queue = queue(1)
    policy = Dstack()
    run_once(policy, [model_queue])
    runs = [ActiveRun(1, 1, 2, 0, 5 * MS)]
    details = []
    for number in range(20):
        details.append(
            policy.forecast(
                queued_request(model_queue, number, 0), model_queue, view([model_queue], 0, active_runs=runs)
            ).detail
        )
        model_queue.add(queued_request(model_queue, number, 0))
    refused = details.index(details[-1])
    assert details[-1]
    assert not any(details[:refused])
    best_ns = min(units * model_queue.expected_ns(4, units) for units in (1, 2)) / 4 / 2
    assert refused * best_ns <= 40 * MS < (refused + 1) * best_ns


def test_later_requests_that_fill_a_larger_run_go_before_one_that_would_limit_it() -> None:
    model_queue = queue(1)
    policy = Dstack()
    run_once(policy, [model_queue])
    model_queue.add(queued_request(model_queue, 1, 0, 13))
    for number in range(2, 6):
        model_queue.add(queued_request(model_queue, number, 0, 60))
    runs = [ActiveRun(1, 1, 1, 0, 90 * MS)]
    choice = policy.next(view([model_queue], 1, active_runs=runs))
    assert choice == RejectQueued(1, 1, is_late=False)
    model_queue.take(1)
    assert policy.next(view([model_queue], 1, active_runs=runs)) == StartRun(1, 4, 4, 1)


@pytest.mark.parametrize("patience_ms, first", [(14, 2), (60, 1)])
def test_run_that_cannot_wait_for_other_units_goes_before_one_of_little_more_value(
    patience_ms: int, first: int
) -> None:
    times = table(2, {(1, 1): 10, (1, 2): 16})
    queues = [queue(1, times), queue(2, times)]
    policy = Dstack()
    run_once(policy, queues)
    for number in (1, 2):
        queues[0].add(queued_request(queues[0], number, 0, 60))
    queues[1].add(queued_request(queues[1], 3, 0, patience_ms))
    runs = [ActiveRun(1, 1, 1, 0, 90 * MS)]
    choice = policy.next(view(queues, 1, active_runs=runs))
    assert isinstance(choice, StartRun)
    assert choice.key == first


@pytest.mark.parametrize("interval_ms, waits", [(2, True), (8, False)])
def test_run_waits_for_another_request_on_a_full_device_while_it_is_in_time(interval_ms: int, *, waits: bool) -> None:
    model_queue = queue(1, table(2, {(1, 1): 10, (1, 2): 10.5, (1, 4): 20}))
    policy = Dstack()
    run_once(policy, [model_queue])
    now = 0
    for number in range(201):
        now = number * interval_ms * MS
        model_queue.record_arrival(1, 1, now)
        if not number % 50:
            policy.forecast(queued_request(model_queue, 0, 0), model_queue, view([model_queue], 2, now))
    policy.run_ended(RunReport(1, "m1", 1, 1, 0, 10 * MS, 1, 0, failed=False), view([model_queue], 2, now))
    model_queue.add(queued_request(model_queue, 1, now, 60))
    runs = [ActiveRun(1, 1, 1, now, now + 90 * MS)]
    choice = policy.next(view([model_queue], 1, now, active_runs=runs))
    assert isinstance(choice, WaitUntil if waits else StartRun)
    if isinstance(choice, WaitUntil):
        assert now + 40 * MS < choice.until < now + 60 * MS - 10.5 * MS
        assert policy.next(view([model_queue], 1, choice.until, active_runs=runs)) == StartRun(1, 1, 1, 1)
    assert isinstance(policy.next(view([model_queue], 2, now)), StartRun)  # an empty device does not wait
    model_queue.add(queued_request(model_queue, 2, now + 2 * MS, 60))
    assert policy.next(view([model_queue], 1, now + 2 * MS, active_runs=runs)) == StartRun(1, 2, 2, 1)


def test_units_are_left_for_a_more_valuable_run_that_needs_more() -> None:
    """A wide model that was served less than others gets its units, although narrow runs could always take them."""
    tables = {1: table(100, {(80, 1): 10, (80, 2): 18}), 2: table(100, {(20, 1): 10, (20, 2): 18})}
    server = ServerMachine(ServerSettings(100, pinned=False))
    for key, times in tables.items():
        server.handle(ModelReady(queue(key, times, max_batch=2).spec, key, times), now=0)
    rows = play_overload(server, tables)
    device_ms = {1: rows[1] * 80 * 9, 2: rows[2] * 20 * 9}
    assert device_ms[1] >= 0.3 * sum(device_ms.values())


def play_overload(server: ServerMachine, times: dict[int, RunTimes]) -> dict[int, int]:
    """Send requests of both models every half millisecond for a second; return the rows of each that were run."""
    ends: list[tuple[int, int, int]] = []
    rows = {1: 0, 2: 0}
    number = 0
    for now in range(0, SECOND, MS // 2):
        actions: list[Any] = []
        while ends and ends[0][0] <= now:
            end, run, took_ns = ends.pop(0)
            actions += server.handle(RunFinished(run, took_ns), now=end)
        for key in times:
            number += 1
            actions += server.handle(RequestArrived(number, f"m{key}", 1, 0), now=now)
        for action in actions:
            if isinstance(action, Run):
                took_ns = queue(action.key, times[action.key]).expected_ns(action.rows, action.units)
                ends.append((now + took_ns, action.run, took_ns))
                ends.sort()
                rows[action.key] += action.rows
    return rows


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 200)), max_size=12), st.integers(1, 2))
def test_decision_is_feasible_for_any_queues(waiting: list[tuple[int, int, int]], free: int) -> None:
    queues = [queue(key) for key in (1, 2, 3)]
    for number, (key, rows, patience) in enumerate(waiting):
        queues[key - 1].add(queued_request(queues[key - 1], number, 0, patience, rows=rows))
    policy = Dstack()
    choice = policy.next(view(queues, free))
    if isinstance(choice, StartRun):
        chosen = queues[choice.key - 1]
        assert 0 < choice.units <= free
        assert choice.units in chosen.widths
        assert choice.rows == sum(request.rows for request in chosen.waiting[: choice.requests])
        assert choice.requests == 1 or choice.rows <= chosen.spec.max_batch
    elif isinstance(choice, RejectQueued) and choice.is_late:
        quickest = queues[choice.key - 1].expected_ns(queues[choice.key - 1].waiting[0].rows, 2)
        assert quickest > queues[choice.key - 1].waiting[0].deadline
    elif isinstance(choice, RejectQueued):
        assert 0 < choice.requests < len(queues[choice.key - 1].waiting)
    else:
        assert choice is None or isinstance(choice, WaitUntil)


@settings(max_examples=10)
@given(st.integers(1, 4), st.integers(1, 4))
def test_device_time_without_deadlines_is_proportional_to_weight(first: int, second: int) -> None:
    """Two models with permanent backlog get device time in proportion to their weights."""
    server = ServerMachine(ServerSettings(2, schedule="dstack"))
    for key, weight in ((1, first), (2, second)):
        server.handle(ModelReady(queue(key, slo_ns=0, weight=weight).spec, key, CPU), now=0)
    number = 0
    runs: dict[int, tuple[int, Run]] = {}
    used_ns = {1: 0, 2: 0}

    def begin(actions: list[Any], now: int) -> None:
        for action in actions:
            assert isinstance(action, Run)
            run_ns = int(queue(1).expected_ns(action.rows, action.units))
            runs[action.run] = (now + run_ns, action)
            used_ns[action.key] += action.units * run_ns

    now = 0
    for _ in range(400):
        for key in (1, 2):
            while len(server.queues()[key - 1].waiting) < 4:
                number += 1
                begin(server.handle(RequestArrived(number, f"m{key}", 1, 0), now=now), now)
        now, run = min(runs.values(), key=lambda entry: entry[0])
        del runs[run.run]
        begin(server.handle(RunFinished(run.run, int(queue(1).expected_ns(run.rows, run.units))), now=now), now)
    assert used_ns[1] / first == pytest.approx(used_ns[2] / second, rel=0.15)


def test_plan_and_admission_expect_interference_until_runs_show_another_value() -> None:
    times = table(100, {(20, 1): 100, (100, 1): 40})
    factor = share_interference()
    server = ServerMachine(ServerSettings(100, pinned=False, interference=factor))
    spec = queue(1, times, max_batch=1).spec
    server.handle(ModelReady(spec, 1, times), now=0)
    (planned,) = server.queues()
    assert planned.expected_ns(1, 20) == pytest.approx(100 * MS * factor, rel=1e-6)
    assert planned.expected_ns(1, 100) == 40 * MS  # no other run has units meanwhile
    assert factor > 1.0
    limit_ns = round(100 * MS * (1 + factor) / 2)  # enough for a run alone, too little next to others
    plain = ModelQueueState(1, spec, times)
    assert (plain.expected_ns(1, 20) < limit_ns, planned.expected_ns(1, 20) > limit_ns) == (True, True)
    for _ in range(200):
        planned.learn(1, 20, 100 * MS)
    assert planned.expected_ns(1, 20) == pytest.approx(100 * MS, rel=0.01)
