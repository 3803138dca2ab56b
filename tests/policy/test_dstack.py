"""Does the server's own policy plan, order and share out the device as it says?"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.domain.lane import Ended, GiveUp, Launch, UnderWay, View
from cotenant.domain.runtimes import RunTime, RunTimes
from cotenant.domain.serving import Arrived, Finished, ModelReady, ModelSpec, Run, Waiting
from cotenant.machine.lanes import QueueLane
from cotenant.machine.server import ServerMachine, ServerSettings
from cotenant.policy.schedule.book import Book
from cotenant.policy.schedule.dstack import Dstack
from cotenant.policy.schedule.goodput import Flow, goodput
from cotenant.policy.schedule.right_size import EFFICACY, THROUGHPUT, Size, frontier, right_size, sizes
from cotenant.policy.schedule.scoreboard import Demand, Scoreboard, parts
from cotenant.policy.schedule.session import choose, plan_of, used

MS = 1_000_000
SECOND = 1000 * MS


def table(all_units: int, cells: dict[tuple[int, int], float]) -> RunTimes:
    times = [RunTime(units, rows, int(ms * MS), int(ms * MS * 1.1)) for (units, rows), ms in sorted(cells.items())]
    return RunTimes(all_units, tuple(times), max(units for units, _ in cells))


CPU = table(2, {(1, 1): 10, (1, 2): 18, (1, 4): 34, (2, 1): 6, (2, 2): 11, (2, 4): 20})


def lane(key: int, times: RunTimes | None = CPU, **more: Any) -> QueueLane:
    fields: dict[str, Any] = {"max_batch": 4, "slo_ns": 40 * MS, **more}
    return QueueLane(key, ModelSpec(f"m{key}", "1", "test", (), (), **fields), times)


def asked(one: QueueLane, request: int, now: int, patience_ms: int = 40, **more: Any) -> Waiting:
    fields = {"rows": 1, "shapes": 0, "priority": 1, **more}
    return Waiting(request, fields["rows"], fields["shapes"], fields["priority"], now, now + patience_ms * MS)


def view(lanes: list[QueueLane], free: int, now: int = 0, **more: Any) -> View:
    busy = [one for one in lanes if one.waiting]
    return View(busy, free, more.pop("units", 2), now, now, tuple(lanes), **more)


def ways() -> st.SearchStrategy[list[Size]]:
    size = st.builds(
        lambda rows, units, typical: Size(rows, units, typical, typical + typical // 10),
        st.integers(1, 32),
        st.integers(1, 100),
        st.integers(1, 10**9),
    )
    return st.lists(size, min_size=1, max_size=20)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 3)), max_size=40))
def test_what_is_reckoned_with_lies_between_the_usual_and_the_rare(story: list[tuple[int, int]]) -> None:
    one = lane(1)
    book = Book(one, 2)
    for in_time, late in story:
        before = book.caution
        book.answered(in_time, late)
        book.learned()
        assert one.expected_ns(2, 1) < book.high_ns(2, 1) <= one.high_ns(2, 1)
        assert book.caution >= before if not in_time else book.caution <= before or late


def test_answers_in_time_make_bolder_and_few_late_ones_careful() -> None:
    book = Book(lane(1), 2)
    book.answered(500, 0)
    bolder = book.high_ns(1, 1)
    book.answered(0, 3)
    book.learned()
    assert bolder < book.high_ns(1, 1) == lane(1).high_ns(1, 1)


@given(ways(), st.integers(1, 10**9), st.floats(0, 10_000), st.sampled_from([EFFICACY, THROUGHPUT]))
def test_no_allowed_way_is_better_than_the_right_one(
    given_ways: list[Size], slo: int, rate: float, objective: str
) -> None:
    found = right_size(given_ways, slo, rate, objective)
    assert found in given_ways
    quick = [one for one in given_ways if one.high_ns * 2 <= slo and one.rows == 1]
    if quick:  # the rule of the half holds whenever one row can hold it
        assert found.high_ns * 2 <= slo
    if any(one.high_ns <= slo and one.rows == 1 for one in given_ways):
        assert found.high_ns <= slo


@given(ways())
def test_the_frontier_leaves_out_only_what_is_beaten(given_ways: list[Size]) -> None:
    kept = frontier(given_ways)
    assert set(kept) <= set(given_ways)
    for one in given_ways:
        assert any(best.high_ns <= one.high_ns and best.area_ns <= one.area_ns for best in kept)


def test_both_objectives_are_tried_and_the_winner_is_named() -> None:
    lanes = [lane(1), lane(2)]
    objective, planned = choose(lanes, [1.0, 1.0], 2)
    plan = plan_of(objective, planned, 2)
    assert objective == EFFICACY  # an idle device: the quick way
    assert {one.objective for one in plan.models} == {EFFICACY}
    assert plan.used == pytest.approx(used(planned, 2))
    assert plan.session_ns == 40 * MS
    assert all(one.why and one.runs >= 1 for one in plan.models)
    objective, planned = choose(lanes, [70.0, 70.0], 2)
    assert objective == THROUGHPUT
    quick = [one._replace(size=right_size(sizes(one.lane, 2), 40 * MS, one.rate, EFFICACY)) for one in planned]
    assert used(planned, 2) < used(quick, 2)


@given(st.floats(0.1, 500), st.floats(1.01, 4))
def test_more_load_never_means_a_larger_part_in_time(rate: float, more: float) -> None:
    size = Size(1, 1, 10 * MS, 11 * MS)
    flows = [Flow(rate * by, 40 * MS, 1, size) for by in (1, more)]
    part, later = (goodput([one], 2) / one.rate for one in flows)
    assert 0 <= later <= part + 1e-9 <= 1 + 2e-9


DEMANDS = st.lists(
    st.builds(Demand, st.integers(1, 6), st.integers(1, 3), st.floats(0.01, 50), st.integers(1, 5)),
    max_size=8,
    unique_by=lambda one: (one.key, one.priority),
)


@given(DEMANDS, st.floats(0.5, 100))
def test_parts_are_within_the_device_by_priority_and_by_weight(demands: list[Demand], units: float) -> None:
    given_parts = parts(demands, units)
    assert len(given_parts) == len(demands)
    total = sum(given_parts.values())
    assert total == pytest.approx(min(units, sum(one.units for one in demands)), rel=1e-6, abs=1e-9)
    hungry = [one for one in demands if given_parts[one.key, one.priority] < one.units - 1e-6]
    for one in hungry:
        mine = given_parts[one.key, one.priority] / one.weight
        for other in demands:
            theirs = given_parts[other.key, other.priority]
            if other.priority > one.priority:
                assert theirs <= 1e-6  # who is behind has nothing while somebody before lacks something
            elif other.priority == one.priority:
                assert theirs / other.weight <= mine + 1e-6


def test_the_scoreboard_forgets_slowly() -> None:
    board = Scoreboard()
    board.add(1, 100.0)
    assert board.served(1) == 100
    board.turn_over({1: None})
    board.turn_over({1: None})
    assert 0 < board.served(1) < 100
    board.turn_over({2: None})
    assert board.served(1) == 0


def test_the_most_urgent_goes_first_and_takes_what_is_in_time() -> None:
    late, soon = lane(1), lane(2)
    for number in range(3):
        late.add(asked(late, number, 0, 90))
    soon.add(asked(soon, 9, 0, 30))
    found = Dstack().next(view([late, soon], 2))
    assert isinstance(found, Launch)
    assert (found.key, found.requests) == (2, 1)


def test_what_cannot_be_in_time_is_given_up_and_the_next_is_not() -> None:
    one = lane(1)
    one.add(asked(one, 1, 0, 40))
    one.add(asked(one, 2, 36 * MS, 40))
    policy = Dstack()
    policy.foresee(asked(one, 3, 0), one, view([one], 2))
    policy.ended(Ended(1, "m1", 1, 1, 0, 10 * MS, 1, 0, failed=False), view([one], 2, 30 * MS))
    assert policy.next(view([one], 2, 37 * MS)) == GiveUp(1, 1)
    one.take(1)
    assert isinstance(policy.next(view([one], 2, 37 * MS)), Launch)


def test_a_model_that_never_ran_is_tried_with_one_request() -> None:
    one = lane(1, None, max_batch=8)
    for number in range(5):
        one.add(asked(one, number, 0))
    assert Dstack().next(view([one], 2)) == Launch(1, 1, 1, 1)


def test_rows_that_look_different_do_not_share_a_run_and_instances_are_kept() -> None:
    one = lane(1, slo_ns=0, instances=1)
    one.add(Waiting(1, 1, 7, 1, 0, -1))
    one.add(Waiting(2, 1, 8, 1, 0, -1))
    policy = Dstack()
    assert policy.next(view([one], 2)) == Launch(1, 1, 1, 2)
    one.take(1)
    one.running = 1
    run = UnderWay(1, 1, 1, 0, 10 * MS)
    assert policy.next(view([one], 1, under_way=[run])) is None


def test_what_waits_before_it_delays_an_answer_in_the_order_of_running() -> None:
    one, other = lane(1), lane(2)
    policy = Dstack()
    assert policy.foresee(asked(one, 1, 0), one, view([one, other], 2)).wait_ns == 0  # an idle device takes anything
    policy.ended(Ended(1, "m1", 1, 1, 0, 10 * MS, 1, 0, failed=False), view([one, other], 2))
    runs = [UnderWay(2, 1, 1, 0, 10 * MS), UnderWay(2, 1, 1, 0, 10 * MS)]
    policy.ended(Ended(2, "m2", 1, 1, 0, 10 * MS, 1, 0, failed=False), view([one, other], 0))
    busy = policy.foresee(asked(one, 1, 0), one, view([one, other], 0, under_way=runs)).wait_ns
    assert busy >= 15 * MS
    for number in range(4):
        other.add(asked(other, 10 + number, 0, 20 + number))
    policy.ended(Ended(2, "m2", 1, 1, 0, 10 * MS, 1, 0, failed=False), view([one, other], 0))
    longer = policy.foresee(asked(one, 1, 0), one, view([one, other], 0, under_way=runs)).wait_ns
    assert longer > busy


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 200)), max_size=12), st.integers(1, 2))
def test_a_choice_is_possible_whatever_waits(waiting: list[tuple[int, int, int]], free: int) -> None:
    lanes = [lane(key) for key in (1, 2, 3)]
    for number, (key, rows, patience) in enumerate(waiting):
        lanes[key - 1].add(asked(lanes[key - 1], number, 0, patience, rows=rows))
    policy = Dstack()
    found = policy.next(view(lanes, free))
    if isinstance(found, Launch):
        chosen = lanes[found.key - 1]
        assert 0 < found.units <= free
        assert found.units in chosen.widths
        assert found.rows == sum(one.rows for one in chosen.waiting[: found.requests])
        assert found.requests == 1 or found.rows <= chosen.spec.max_batch
    elif isinstance(found, GiveUp):
        quickest = lanes[found.key - 1].expected_ns(lanes[found.key - 1].waiting[0].rows, 2)
        assert quickest > lanes[found.key - 1].waiting[0].deadline
    else:
        assert found is None


@settings(max_examples=10)
@given(st.integers(1, 4), st.integers(1, 4))
def test_without_deadlines_the_device_is_filled_by_weight(first: int, second: int) -> None:
    """Two models that always have something waiting: what each had of the device is as their weights."""
    server = ServerMachine(ServerSettings(2, schedule="dstack"))
    for key, weight in ((1, first), (2, second)):
        server.handle(ModelReady(lane(key, slo_ns=0, weight=weight).spec, key, CPU), now=0)
    number = 0
    runs: dict[int, tuple[int, Run]] = {}
    had = {1: 0, 2: 0}

    def begin(actions: list[Any], now: int) -> None:
        for one in actions:
            assert isinstance(one, Run)
            lasts = int(lane(1).expected_ns(one.rows, one.units))
            runs[one.run] = (now + lasts, one)
            had[one.key] += one.units * lasts

    now = 0
    for _ in range(400):
        for key in (1, 2):
            while len(server.lanes()[key - 1].waiting) < 4:
                number += 1
                begin(server.handle(Arrived(number, f"m{key}", 1, 0), now=now), now)
        now, run = min(runs.values(), key=lambda one: one[0])
        del runs[run.run]
        begin(server.handle(Finished(run.run, int(lane(1).expected_ns(run.rows, run.units))), now=now), now)
    assert had[1] / first == pytest.approx(had[2] / second, rel=0.15)
