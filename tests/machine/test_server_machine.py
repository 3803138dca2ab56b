"""Does a server's machine answer every request once, in the order and the batches that it should?"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.domain.lane import GiveUp, Hold, Launch, View
from cotenant.domain.runtimes import RunTime, RunTimes
from cotenant.domain.serving import (
    Arrived,
    Cancelled,
    Drained,
    Draining,
    Finished,
    ModelLeaving,
    ModelReady,
    ModelSpec,
    Refusal,
    Release,
    Run,
    Tick,
    TurnAway,
)
from cotenant.machine.server import ServerMachine, ServerSettings
from cotenant.policy.schedule import SERVE_POLICIES
from cotenant.policy.schedule.fifo import Fifo
from tests.effort import examples

MS = 1_000_000
SECOND = 1000 * MS


def spec(name: str = "m", **more: Any) -> ModelSpec:
    return ModelSpec(name, "1", "test", (), (), **{"max_batch": 4, **more})


def machine(*specs: ModelSpec, cores: int = 1, **more: Any) -> ServerMachine:
    made = ServerMachine(ServerSettings(cores, **{"schedule": "fifo", **more}))
    for key, one in enumerate(specs, 1):
        assert made.handle(ModelReady(one, key), now=0) == []
    return made


def ran(actions: list[Any]) -> list[tuple[int, ...]]:
    return [one.requests for one in actions if isinstance(one, Run)]


def test_what_waited_for_a_core_runs_together() -> None:
    server = machine(spec())
    assert ran(server.handle(Arrived(1, "m", 1, 0), now=1)) == [(1,)]
    for number in (2, 3, 4):
        assert server.handle(Arrived(number, "m", 1, 0), now=2) == []
    assert ran(server.handle(Finished(1, 5), now=6)) == [(2, 3, 4)]


def test_a_batch_has_no_more_rows_than_the_model_takes() -> None:
    server = machine(spec())
    server.handle(Arrived(1, "m", 1, 0), now=1)
    for number, rows in ((2, 2), (3, 2), (4, 1)):
        server.handle(Arrived(number, "m", rows, 0), now=2)
    assert ran(server.handle(Finished(1, 5), now=6)) == [(2, 3)]


def test_rows_that_look_different_do_not_mix() -> None:
    server = machine(spec())
    server.handle(Arrived(1, "m", 1, 0), now=1)
    for number, shapes in ((2, 7), (3, 8), (4, 7)):
        server.handle(Arrived(number, "m", 1, shapes), now=2)
    assert ran(server.handle(Finished(1, 5), now=6)) == [(2,)]


def test_the_urgent_go_first_and_the_rest_in_order() -> None:
    server = machine(spec(max_batch=1))
    server.handle(Arrived(1, "m", 1, 0), now=1)
    for number, priority in ((2, 3), (3, 2), (4, 3), (5, 1)):
        server.handle(Arrived(number, "m", 1, 0, priority), now=2)
    order = [ran(server.handle(Finished(run, 5), now=6 + run))[0][0] for run in range(1, 5)]
    assert order == [5, 3, 2, 4]


def test_of_two_models_the_one_whose_request_came_first() -> None:
    server = machine(spec("a"), spec("b"))
    server.handle(Arrived(1, "a", 1, 0), now=1)
    server.handle(Arrived(2, "b", 1, 0), now=2)
    server.handle(Arrived(3, "a", 1, 0), now=3)
    assert ran(server.handle(Finished(1, 5), now=6)) == [(2,)]


def test_a_batch_waits_for_more_as_long_as_it_may() -> None:
    server = machine(spec(wait_ns=10, preferred_batches=(3,)))
    assert server.handle(Arrived(1, "m", 1, 0), now=5) == []
    assert server.next_wakeup() == 15
    assert server.handle(Arrived(2, "m", 1, 0), now=6) == []
    assert ran(server.handle(Arrived(3, "m", 1, 0), now=7)) == [(1, 2, 3)]
    server.handle(Finished(1, 1), now=8)
    server.handle(Arrived(4, "m", 1, 0), now=20)
    assert ran(server.handle(Tick(), now=30)) == [(4,)]


def test_runs_share_the_cores_and_never_hold_one_twice() -> None:
    server = machine(spec("a", share=2), spec("b"), cores=3)
    first = [one for one in server.handle(Arrived(1, "a", 1, 0), now=1) if isinstance(one, Run)]
    second = [one for one in server.handle(Arrived(2, "b", 1, 0), now=1) if isinstance(one, Run)]
    assert [one.cores for one in (*first, *second)] == [(0, 1), (2,)]
    assert server.handle(Arrived(3, "a", 1, 0), now=1) == []
    assert server.handle(Finished(2, 1), now=2) == []
    third = [one for one in server.handle(Finished(1, 1), now=2) if isinstance(one, Run)]
    assert [one.cores for one in third] == [(0, 1)]


def one_run_of_100() -> ServerMachine:
    """It is known that runs take 100, that word of their end takes about 1, and the second is to end at 300."""
    server = machine(spec(max_batch=1), ahead=True)
    server.handle(Arrived(1, "m", 1, 0), now=0)
    server.handle(Finished(1, 100), now=104)
    assert ran(server.handle(Arrived(2, "m", 1, 0), now=200)) == [(2,)]
    return server


def test_what_waits_follows_the_run_that_is_about_to_end() -> None:
    server = one_run_of_100()
    assert server.handle(Arrived(3, "m", 1, 0), now=210) == []
    assert server.next_wakeup() == 299
    (third,) = server.handle(Tick(), now=299)
    assert isinstance(third, Run)
    assert (third.requests, third.cores, third.after) == ((3,), (0,), 2)
    assert server.handle(Arrived(4, "m", 1, 0), now=300) == []  # nobody follows what has not begun
    assert server.next_wakeup() is None
    assert server.handle(Finished(2, 100), now=303) == []
    assert server.next_wakeup() == 402
    (fourth,) = server.handle(Finished(3, 47), now=350)  # sooner than believed
    assert isinstance(fourth, Run)
    assert (fourth.requests, fourth.cores, fourth.after) == ((4,), (0,), 0)


def test_nobody_follows_a_run_that_is_overdue() -> None:
    server = one_run_of_100()
    assert server.handle(Arrived(3, "m", 1, 0), now=310) == []
    assert server.next_wakeup() is None
    (third,) = server.handle(Finished(2, 200), now=401)
    assert isinstance(third, Run)
    assert third.after == 0


def test_a_deadline_that_cannot_be_met_is_refused_at_once() -> None:
    server = machine(spec(slo_ns=25 * MS, max_batch=1))
    server.handle(Arrived(1, "m", 1, 0), now=0)
    server.handle(Finished(1, 10 * MS), now=10 * MS)
    server.handle(Arrived(2, "m", 1, 0), now=10 * MS)  # runs
    assert server.handle(Arrived(3, "m", 1, 0), now=10 * MS) == []  # 20 ms
    (refused,) = server.handle(Arrived(4, "m", 1, 0), now=10 * MS)  # 30 ms
    assert isinstance(refused, TurnAway)
    assert (refused.why, refused.retry_after_ns) == (Refusal.TOO_LATE, 5 * MS)
    assert server.handle(Arrived(5, "m", 1, 0, 0, 40 * MS), now=10 * MS) == []  # its own timeout is longer


def test_what_passed_its_deadline_in_the_queue_is_told_so() -> None:
    server = machine(spec(slo_ns=10))
    server.handle(Arrived(1, "m", 1, 0), now=0)
    server.handle(Arrived(2, "m", 1, 0), now=1)
    assert server.next_wakeup() == 11
    (refused,) = server.handle(Tick(), now=11)
    assert isinstance(refused, TurnAway)
    assert (refused.request, refused.why, refused.retry_after_ns) == (2, Refusal.TOO_LATE, 10)  # as long as it waited
    assert server.handle(Finished(1, 50), now=50) == []


def test_who_is_cancelled_is_never_run() -> None:
    server = machine(spec())
    server.handle(Arrived(1, "m", 1, 0), now=0)
    server.handle(Arrived(2, "m", 1, 0), now=0)
    server.handle(Arrived(3, "m", 1, 0), now=0)
    assert server.handle(Cancelled(2), now=1) == []
    assert server.handle(Cancelled(1), now=1) == []  # runs already
    assert ran(server.handle(Finished(1, 5), now=6)) == [(3,)]


def test_a_model_that_is_loaded_again_ends_what_it_has() -> None:
    server = machine(spec())
    server.handle(Arrived(1, "m", 1, 0), now=0)
    server.handle(Arrived(2, "m", 1, 0), now=0)
    assert server.handle(ModelReady(spec(weight=2), 9), now=1) == []
    server.handle(Arrived(3, "m", 1, 0), now=2)
    (old,) = server.handle(Finished(1, 5), now=6)
    assert isinstance(old, Run)
    assert (old.key, old.requests) == (1, (2,))
    release, new = server.handle(Finished(2, 5), now=7)
    assert isinstance(release, Release)
    assert release.key == 1
    assert isinstance(new, Run)
    assert (new.key, new.requests) == (9, (3,))


def test_nobody_gets_in_while_it_drains() -> None:
    server = machine(spec())
    server.handle(Arrived(1, "m", 1, 0), now=0)
    assert server.handle(Draining(), now=1) == []
    (refused,) = server.handle(Arrived(2, "m", 1, 0), now=2)
    assert isinstance(refused, TurnAway)
    assert refused.why is Refusal.DRAINING
    assert [type(one) for one in server.handle(Finished(1, 5), now=6)] == [Drained]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    "schedule, admit", [("fifo", "deadline"), ("fifo", "anyone"), ("dstack", "deadline"), ("dstack", "anyone")]
)
@settings(max_examples=examples(20, 600), deadline=None)
@given(data=st.data())
def test_every_request_ends_once_whatever_happens(  # noqa: C901, PLR0915  one story
    schedule: str, admit: str, ahead: bool, data: st.DataObject
) -> None:
    """Conservation: each request is run, refused or cancelled, and cores are never held twice by what has begun."""
    specs = (spec("a", slo_ns=30, queue_limit=3), spec("b", share=2, wait_ns=5), spec("c", max_batch=0, instances=1))
    server = machine(*specs, cores=2, schedule=schedule, admit=admit, requests_limit=6, ahead=ahead)
    running: dict[int, Run] = {}
    ended: dict[int, str] = {}
    now = 0
    arrived = 0
    drained = 0

    def take(actions: list[Any]) -> None:
        nonlocal drained
        for one in actions:
            if isinstance(one, Run):
                running[one.run] = one
                begun = [run for run in running.values() if run.after not in running]
                held = [core for run in begun for core in run.cores]
                assert len(held) == len(set(held)) <= 2
                if one.after:
                    assert ahead
                    assert one.cores[0] == running[one.after].cores[0]  # whoever has it begins this one next
                    assert sum(run.after == one.after for run in running.values()) == 1
                for request in one.requests:
                    assert ended.setdefault(request, "run") == "run"
            elif isinstance(one, TurnAway):
                assert one.request not in ended
                ended[one.request] = "refused"
            elif isinstance(one, Drained):
                drained += 1

    steps = data.draw(st.lists(st.sampled_from("aaabbbcccfffxtu"), max_size=40))
    for step in [*steps, "d"]:
        now += data.draw(st.integers(0, 12))
        if step in "abc":
            arrived += 1
            rows = data.draw(st.integers(1, 5))
            take(server.handle(Arrived(arrived, step, rows, rows % 2, data.draw(st.integers(0, 2))), now=now))
        elif step == "f" and running:
            run = data.draw(st.sampled_from(sorted(one for one in running if running[one].after not in running)))
            take(server.handle(Finished(running.pop(run).run, 7), now=now))
        elif step == "x" and arrived:
            victim = data.draw(st.integers(1, arrived))
            ended.setdefault(victim, "cancelled")
            take(server.handle(Cancelled(victim), now=now))
        elif step == "u":
            take(server.handle(ModelLeaving("c"), now=now))
        elif step == "d":
            take(server.handle(Draining(), now=now))
        wake = server.next_wakeup()
        if wake is not None and wake <= now:
            take(server.handle(Tick(), now=now))
    for _ in range(200):
        if not running and server.next_wakeup() is None:
            break
        if running:
            now += 7
            take(server.handle(Finished(running.pop(min(running)).run, 7), now=now))
        else:
            now = max(now, server.next_wakeup() or now)
            take(server.handle(Tick(), now=now))
    assert sorted(ended) == list(range(1, arrived + 1))
    assert drained == 1
    assert server.waiting == 0


def test_an_unshared_run_takes_no_units_and_no_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unshared(Fifo):
        def next(self, view: View) -> Launch | Hold | None:
            found = super().next(view)
            return Launch(found.key, found.requests, found.rows, 0) if isinstance(found, Launch) else found

    monkeypatch.setitem(SERVE_POLICIES, "unshared", Unshared)
    server = machine(spec("a"), spec("b", share=2), cores=2, schedule="unshared")
    begun = [server.handle(Arrived(number, model, 1, 0), now=1)[0] for number, model in ((1, "a"), (2, "b"), (3, "a"))]
    assert [(one.units, one.cores) for one in begun if isinstance(one, Run)] == [(0, ())] * 3
    assert server.handle(Finished(2, 5), now=6) == []
    assert ran(server.handle(Arrived(4, "b", 1, 0), now=7)) == [(4,)]
    assert server.lanes()[0].expected_ns(1, 2) == 0
    server.handle(Finished(1, 8), now=9)
    assert server.lanes()[0].expected_ns(1, 2) == 8  # it had the whole device


def test_what_is_given_up_is_refused_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Choosy(Fifo):
        def next(self, view: View) -> Launch | GiveUp | Hold | None:  # type: ignore[override]
            lanes = list(view.lanes)
            return GiveUp(lanes[0].key, 1) if lanes[0].waiting[0].request % 2 else super().next(view)

    monkeypatch.setitem(SERVE_POLICIES, "choosy", Choosy)
    server = machine(spec(), schedule="choosy")
    (refused,) = server.handle(Arrived(1, "m", 1, 0), now=1)
    assert isinstance(refused, TurnAway)
    assert (refused.request, refused.why, refused.retry_after_ns) == (1, Refusal.TOO_LATE, SECOND)  # it did not wait
    assert ran(server.handle(Arrived(2, "m", 1, 0), now=2)) == [(2,)]
    assert server.waiting == 0


def test_one_bad_run_does_not_close_the_door_for_good() -> None:
    """Ten times its belief once, by a stall; then quiet load: everybody is taken again, and answered."""
    times = RunTimes(1, (RunTime(1, 1, 10 * MS, 11 * MS),), 1)
    server = ServerMachine(ServerSettings(1, schedule="dstack"))
    server.handle(ModelReady(spec(slo_ns=30 * MS), 1, times), now=0)
    (first,) = server.handle(Arrived(1, "m", 1, 0), now=SECOND)
    assert isinstance(first, Run)
    now = SECOND + 400 * MS
    server.handle(Finished(1, 300 * MS), now=now)
    for number in range(2, 40):
        now += 50 * MS
        (run,) = server.handle(Arrived(number, "m", 1, 0), now=now)
        assert isinstance(run, Run)
        server.handle(Finished(run.run, 10 * MS), now=now + 10 * MS)


def test_one_stall_of_the_machine_is_not_taken_for_a_habit() -> None:
    """Word of a run's end came late once: requests with their own timeouts are still taken while others run."""
    server = ServerMachine(ServerSettings(1, schedule="dstack"))
    server.handle(ModelReady(spec(), 1, RunTimes(1, (RunTime(1, 1, 10 * MS, 11 * MS),), 1)), now=0)
    server.handle(Arrived(1, "m", 1, 0), now=SECOND)
    server.handle(Finished(1, 10 * MS), now=SECOND + 800 * MS)
    assert ran(server.handle(Arrived(2, "m", 1, 0, 0, 200 * MS), now=SECOND + 810 * MS)) == [(2,)]
    assert server.handle(Arrived(3, "m", 1, 0, 0, 200 * MS), now=SECOND + 811 * MS) == []
    assert ran(server.handle(Finished(2, 10 * MS), now=SECOND + 820 * MS)) == [(3,)]


def test_models_come_and_go_between_plans() -> None:
    server = machine(spec("a", slo_ns=SECOND), spec("b", slo_ns=SECOND), schedule="dstack")
    for number, name in ((1, "a"), (2, "b")):
        (run,) = server.handle(Arrived(number, name, 1, 0), now=number * SECOND)
        assert isinstance(run, Run)
        server.handle(Finished(run.run, MS), now=number * SECOND + MS)
    assert [type(one) for one in server.handle(ModelLeaving("a"), now=3 * SECOND)] == [Release]
    assert ran(server.handle(Arrived(3, "b", 1, 0), now=4 * SECOND)) == [(3,)]
    server.handle(ModelReady(spec("a"), 7), now=5 * SECOND)
    server.handle(Finished(3, MS), now=5 * SECOND)
    assert ran(server.handle(Arrived(4, "a", 1, 0), now=6 * SECOND)) == [(4,)]
