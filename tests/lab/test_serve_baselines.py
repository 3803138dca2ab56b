"""Tests that each serving baseline chooses as the published system does."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cotenant.serve.model.event import ModelSpec, QueuedRequest
from cotenant.serve.model.run_times import RunTime, RunTimes
from cotenant.serve.model.scheduling import ActiveRun, RejectQueued, RunReport, StartRun, View, WaitUntil
from cotenant.serve.state.model_queue import ModelQueueState
from cotenant_lab.baselines.serve.clipper import Clipper
from cotenant_lab.baselines.serve.fixed import FixedBatch
from cotenant_lab.baselines.serve.gslice import Gslice, cut
from cotenant_lab.baselines.serve.nexus import Nexus, packed
from cotenant_lab.baselines.serve.temporal import Temporal
from cotenant_lab.baselines.serve.triton import Triton

MS = 1_000_000
S = 1_000 * MS


def times(row_ms: int = 1, knee: int = 50) -> RunTimes:
    """Return run times per row: constant on half of the device or more, twice as long on a quarter."""
    cells = [
        RunTime(units, rows, took, took)
        for rows in range(1, 9)
        for units, took in ((25, 2 * row_ms * rows * MS), (50, row_ms * rows * MS), (100, row_ms * rows * MS))
    ]
    return RunTimes(100, tuple(cells), knee)


def queue(key: int, waiting: int, since: int = 0, deadline: int = -1, row_ms: int = 1, **more: Any) -> ModelQueueState:
    fields: dict[str, Any] = {"max_batch": 8, "slo_ns": 40 * MS, **more}
    made = ModelQueueState(key, ModelSpec(f"m{key}", "1", "test", (), (), **fields), times(row_ms))
    for place in range(waiting):
        made.add(QueuedRequest(100 * key + place, 1, 0, 1, since, deadline))
    return made


def at(now: int, *queues: ModelQueueState, active_runs: tuple[ActiveRun, ...] = ()) -> View:
    held = sum(run.units for run in active_runs)
    busy = [one for one in queues if one.waiting]
    return View(busy, 100 - held, 100, now, now, queues, active_runs)


def ended(key: int, rows: int, took_ms: int) -> RunReport:
    return RunReport(key, f"m{key}", rows, 0, 0, took_ms * MS, rows, 0, failed=False)


def rated(one: ModelQueueState, per_second: int) -> ModelQueueState:
    """Return a model queue with this request rate."""
    for number in range(3 * per_second):
        one.record_arrival(1, 1, number * S // per_second)
    return one


def test_temporal_turns_are_round_robin_on_the_whole_device() -> None:
    policy, one, other = Temporal(), queue(1, 3), queue(2, 1)
    assert policy.next(at(0, one, other)) == StartRun(1, 3, 3, 100)
    assert policy.next(at(0, one, other, active_runs=(ActiveRun(1, 3, 100, 0, 3 * MS),))) is None
    assert [policy.next(at(0, one, other)), policy.next(at(0, one, other))] == [
        StartRun(2, 1, 1, 100),
        StartRun(1, 3, 3, 100),
    ]
    assert policy.next(at(0, queue(1, 8, row_ms=4))) == StartRun(1, 5, 5, 100)  # 5 rows in half of 40 ms


def test_forecast_includes_earlier_turns() -> None:
    policy, one, other = Temporal(), queue(1, 4), queue(2, 2)
    policy.next(at(0, one))
    request = QueuedRequest(999, 1, 0, 1, 0, -1)
    assert policy.forecast(request, other, at(0, one, other)).wait_ns == 3 * MS
    assert policy.forecast(request, one, at(0, one, other)).wait_ns == (2 + 5) * MS


def test_triton_batches_waiting_requests_unless_delayed() -> None:
    policy = Triton()
    assert policy.next(at(5, queue(1, 3))) == StartRun(1, 3, 3, 0)
    assert policy.next(at(5, queue(1, 3, wait_ns=10))) == WaitUntil(10)
    assert policy.next(at(10, queue(1, 3, wait_ns=10))) == StartRun(1, 3, 3, 0)
    assert policy.next(at(5, queue(1, 3, wait_ns=10, preferred_batches=(2, 4)))) == StartRun(1, 2, 2, 0)
    busy = queue(1, 3)
    busy.running = 1
    assert policy.next(at(5, busy)) is None
    busy.spec = ModelSpec("m1", "1", "test", (), (), max_batch=8, instances=2)
    assert policy.next(at(5, busy)) == StartRun(1, 3, 3, 0)


def test_fixed_waits_for_a_full_batch() -> None:
    policy = FixedBatch()
    assert policy.next(at(5, queue(1, 7))) == WaitUntil(20 * MS)
    assert policy.next(at(5, queue(1, 7, slo_ns=0))) == WaitUntil(100 * MS)
    assert policy.next(at(20 * MS, queue(1, 7))) == StartRun(1, 7, 7, 0)
    assert policy.next(at(5, queue(1, 7), queue(2, 9))) == StartRun(2, 8, 8, 0)


def test_clipper_grows_by_one_and_shrinks_by_a_tenth() -> None:
    policy, one = Clipper(), queue(1, 8)
    sizes = []
    for took_ms in (1, 2, 3, 4, 41, 41, 4):
        choice = policy.next(at(0, one))
        assert isinstance(choice, StartRun)
        sizes.append(choice.rows)
        policy.run_ended(ended(1, choice.rows, took_ms), at(0, one))
    assert sizes == [1, 2, 3, 4, 5, 4, 4]
    policy.run_ended(ended(1, 1, 1), at(0, one))  # a batch that was not full changes nothing
    choice = policy.next(at(0, one))
    assert isinstance(choice, StartRun)
    assert choice.rows == 5


def test_nexus_drops_hopeless_requests_early() -> None:
    policy = Nexus()
    hopeless = queue(1, 3, deadline=2 * MS)
    hopeless.add(QueuedRequest(150, 1, 0, 1, 0, 9 * MS))
    assert policy.next(at(0, hopeless)) == RejectQueued(1, 2)  # the third would be in time with the fourth
    hopeless.take(2)
    assert policy.next(at(0, hopeless)) == StartRun(1, 2, 2, 100)


def test_nexus_fills_the_shortest_cycle_of_all() -> None:
    quick, slow = rated(queue(1, 0), 100), rated(queue(2, 0, slo_ns=200 * MS), 20)
    cycle = packed([quick, slow], 100)
    # alone, 3 rows come to the quick one in 30 ms and take 3: within 40; the slow one gets 1 row in that time
    assert cycle.cycle_ns == 30 * MS
    assert {key: turn.batch for key, turn in cycle.turns.items()} == {1: 3, 2: 1}
    crowded = packed([rated(queue(key, 0), 400) for key in (1, 2, 3)], 100)
    assert crowded.cycle_ns == sum(turn.took_ns for turn in crowded.turns.values())
    assert {turn.batch for turn in crowded.turns.values()} == {8}


def test_nexus_starts_a_cycle_after_the_previous_one() -> None:
    policy, one = Nexus(), rated(queue(1, 1, since=3 * S), 100)
    assert policy.next(at(3 * S, one)) == StartRun(1, 1, 1, 100)
    assert policy.next(at(3 * S + 5 * MS, one)) == WaitUntil(3 * S + 30 * MS)
    assert policy.next(at(3 * S + 30 * MS, one)) == StartRun(1, 1, 1, 100)


def test_gslice_keeps_parts_and_corrects_them() -> None:
    policy, one, other = Gslice(), queue(1, 8), queue(2, 1)
    assert policy.next(at(0, one, other)) == StartRun(1, 8, 8, 50)
    one.running = 1
    held = (ActiveRun(1, 8, 50, 0, 8 * MS),)
    assert policy.next(at(0, one, other, active_runs=held)) == StartRun(2, 1, 1, 50)
    policy.run_ended(ended(1, 8, 900), at(S, one, other))
    policy.run_ended(ended(2, 1, 1), at(S, one, other))
    one.take(8)
    assert policy.next(at(S, one, other)) == StartRun(2, 1, 1, 25)  # it was idle for most of the time
    plan = policy.plan()
    assert plan is not None
    assert [model.units for model in plan.models] == [50, 25]


@given(st.lists(st.sampled_from([25, 50, 100]), min_size=1, max_size=6), st.integers(10, 100))
def test_parts_fit_the_device(requests: list[int], all_units: int) -> None:
    queues = [queue(key, 0) for key in range(len(requests))]
    parts = cut(dict(enumerate(requests)), queues, all_units)
    assert sum(parts.values()) <= all_units
    assert all(0 < parts[key] <= request for key, request in enumerate(requests))
