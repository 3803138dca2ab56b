"""Does each baseline choose as the system it is named after is said to?"""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cotenant.domain.lane import Ended, GiveUp, Hold, Launch, UnderWay, View
from cotenant.domain.runtimes import RunTime, RunTimes
from cotenant.domain.serving import ModelSpec, Waiting
from cotenant.machine.lanes import QueueLane
from cotenant.policy.schedule.clipper import Clipper
from cotenant.policy.schedule.fixed import Fixed
from cotenant.policy.schedule.gslice import Gslice, cut
from cotenant.policy.schedule.nexus import Nexus, packed
from cotenant.policy.schedule.temporal import Temporal
from cotenant.policy.schedule.triton import Triton

MS = 1_000_000
S = 1_000 * MS


def times(row_ms: int = 1, knee: int = 50) -> RunTimes:
    """So long for each row on half of the device or more, twice as long on a quarter."""
    cells = [
        RunTime(units, rows, took, took)
        for rows in range(1, 9)
        for units, took in ((25, 2 * row_ms * rows * MS), (50, row_ms * rows * MS), (100, row_ms * rows * MS))
    ]
    return RunTimes(100, tuple(cells), knee)


def lane(key: int, waiting: int, since: int = 0, deadline: int = -1, row_ms: int = 1, **more: Any) -> QueueLane:
    fields: dict[str, Any] = {"max_batch": 8, "slo_ns": 40 * MS, **more}
    made = QueueLane(key, ModelSpec(f"m{key}", "1", "test", (), (), **fields), times(row_ms))
    for place in range(waiting):
        made.add(Waiting(100 * key + place, 1, 0, 1, since, deadline))
    return made


def at(now: int, *lanes: QueueLane, under_way: tuple[UnderWay, ...] = ()) -> View:
    held = sum(run.units for run in under_way)
    busy = [one for one in lanes if one.waiting]
    return View(busy, 100 - held, 100, now, now, lanes, under_way)


def ended(key: int, rows: int, took_ms: int) -> Ended:
    return Ended(key, f"m{key}", rows, 0, 0, took_ms * MS, rows, 0, failed=False)


def rated(one: QueueLane, per_second: int) -> QueueLane:
    """A lane that has been asked so often for a while."""
    for number in range(3 * per_second):
        one.came(1, 1, number * S // per_second)
    return one


def test_turns_go_round_and_each_has_the_whole_device() -> None:
    policy, one, other = Temporal(), lane(1, 3), lane(2, 1)
    assert policy.next(at(0, one, other)) == Launch(1, 3, 3, 100)
    assert policy.next(at(0, one, other, under_way=(UnderWay(1, 3, 100, 0, 3 * MS),))) is None
    assert [policy.next(at(0, one, other)), policy.next(at(0, one, other))] == [
        Launch(2, 1, 1, 100),
        Launch(1, 3, 3, 100),
    ]
    assert policy.next(at(0, lane(1, 8, row_ms=4))) == Launch(1, 5, 5, 100)  # 5 rows in half of 40 ms


def test_whose_turn_is_later_waits_for_those_before() -> None:
    policy, one, other = Temporal(), lane(1, 4), lane(2, 2)
    policy.next(at(0, one))
    asked = Waiting(999, 1, 0, 1, 0, -1)
    assert policy.foresee(asked, other, at(0, one, other)).wait_ns == 3 * MS
    assert policy.foresee(asked, one, at(0, one, other)).wait_ns == (2 + 5) * MS


def test_triton_takes_what_is_there_unless_it_is_to_wait() -> None:
    policy = Triton()
    assert policy.next(at(5, lane(1, 3))) == Launch(1, 3, 3, 0)
    assert policy.next(at(5, lane(1, 3, wait_ns=10))) == Hold(10)
    assert policy.next(at(10, lane(1, 3, wait_ns=10))) == Launch(1, 3, 3, 0)
    assert policy.next(at(5, lane(1, 3, wait_ns=10, preferred_batches=(2, 4)))) == Launch(1, 2, 2, 0)
    busy = lane(1, 3)
    busy.running = 1
    assert policy.next(at(5, busy)) is None
    busy.spec = ModelSpec("m1", "1", "test", (), (), max_batch=8, instances=2)
    assert policy.next(at(5, busy)) == Launch(1, 3, 3, 0)


def test_fixed_waits_for_its_one_size() -> None:
    policy = Fixed()
    assert policy.next(at(5, lane(1, 7))) == Hold(20 * MS)
    assert policy.next(at(5, lane(1, 7, slo_ns=0))) == Hold(100 * MS)
    assert policy.next(at(20 * MS, lane(1, 7))) == Launch(1, 7, 7, 0)
    assert policy.next(at(5, lane(1, 7), lane(2, 9))) == Launch(2, 8, 8, 0)


def test_clipper_grows_by_one_and_shrinks_by_a_tenth() -> None:
    policy, one = Clipper(), lane(1, 8)
    sizes = []
    for took_ms in (1, 2, 3, 4, 41, 41, 4):
        choice = policy.next(at(0, one))
        assert isinstance(choice, Launch)
        sizes.append(choice.rows)
        policy.ended(ended(1, choice.rows, took_ms), at(0, one))
    assert sizes == [1, 2, 3, 4, 5, 4, 4]
    policy.ended(ended(1, 1, 1), at(0, one))  # a batch that was not full says nothing
    choice = policy.next(at(0, one))
    assert isinstance(choice, Launch)
    assert choice.rows == 5


def test_nexus_gives_up_early_what_would_be_late() -> None:
    policy = Nexus()
    hopeless = lane(1, 3, deadline=2 * MS)
    hopeless.add(Waiting(150, 1, 0, 1, 0, 9 * MS))
    assert policy.next(at(0, hopeless)) == GiveUp(1, 2)  # the third would be in time with the fourth
    hopeless.take(2)
    assert policy.next(at(0, hopeless)) == Launch(1, 2, 2, 100)


def test_nexus_fills_the_shortest_cycle_of_all() -> None:
    quick, slow = rated(lane(1, 0), 100), rated(lane(2, 0, slo_ns=200 * MS), 20)
    cycle = packed([quick, slow], 100)
    # alone, 3 rows come to the quick one in 30 ms and take 3: within 40; the slow one gets 1 row in that time
    assert cycle.cycle_ns == 30 * MS
    assert {key: turn.batch for key, turn in cycle.turns.items()} == {1: 3, 2: 1}
    crowded = packed([rated(lane(key, 0), 400) for key in (1, 2, 3)], 100)
    assert crowded.cycle_ns == sum(turn.took_ns for turn in crowded.turns.values())
    assert {turn.batch for turn in crowded.turns.values()} == {8}


def test_nexus_begins_a_cycle_when_the_last_is_over() -> None:
    policy, one = Nexus(), rated(lane(1, 1, since=3 * S), 100)
    assert policy.next(at(3 * S, one)) == Launch(1, 1, 1, 100)
    assert policy.next(at(3 * S + 5 * MS, one)) == Hold(3 * S + 30 * MS)
    assert policy.next(at(3 * S + 30 * MS, one)) == Launch(1, 1, 1, 100)


def test_gslice_keeps_parts_and_corrects_them() -> None:
    policy, one, other = Gslice(), lane(1, 8), lane(2, 1)
    assert policy.next(at(0, one, other)) == Launch(1, 8, 8, 50)
    one.running = 1
    held = (UnderWay(1, 8, 50, 0, 8 * MS),)
    assert policy.next(at(0, one, other, under_way=held)) == Launch(2, 1, 1, 50)
    policy.ended(ended(1, 8, 900), at(S, one, other))
    policy.ended(ended(2, 1, 1), at(S, one, other))
    one.take(8)
    assert policy.next(at(S, one, other)) == Launch(2, 1, 1, 25)  # it was idle for most of the time
    plan = policy.plan()
    assert plan is not None
    assert [model.units for model in plan.models] == [50, 25]


@given(st.lists(st.sampled_from([25, 50, 100]), min_size=1, max_size=6), st.integers(10, 100))
def test_parts_fit_the_device(wishes: list[int], all_units: int) -> None:
    lanes = [lane(key, 0) for key in range(len(wishes))]
    parts = cut(dict(enumerate(wishes)), lanes, all_units)
    assert sum(parts.values()) <= all_units
    assert all(0 < parts[key] <= wish for key, wish in enumerate(wishes))
