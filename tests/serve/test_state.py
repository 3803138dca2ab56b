"""The server's state machine answers every request once, in the specified order and batches."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.serve.model.event import (
    DrainRequested,
    ModelReady,
    ModelSpec,
    ModelWithdrawn,
    RejectReason,
    RejectRequest,
    ReleaseModel,
    ReportDrained,
    RequestArrived,
    RequestCancelled,
    Run,
    RunFinished,
    Tick,
)
from cotenant.serve.model.run_times import RunTime, RunTimes
from cotenant.serve.model.scheduling import RejectQueued, StartRun, View, WaitUntil
from cotenant.serve.policy import BUILT_IN
from cotenant.serve.policy.fifo import Fifo
from cotenant.serve.state.server import ServerMachine, ServerSettings
from tests.support.effort import examples

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
    assert ran(server.handle(RequestArrived(1, "m", 1, 0), now=1)) == [(1,)]
    for number in (2, 3, 4):
        assert server.handle(RequestArrived(number, "m", 1, 0), now=2) == []
    assert ran(server.handle(RunFinished(1, 5), now=6)) == [(2, 3, 4)]


def test_a_batch_has_no_more_rows_than_the_model_takes() -> None:
    server = machine(spec())
    server.handle(RequestArrived(1, "m", 1, 0), now=1)
    for number, rows in ((2, 2), (3, 2), (4, 1)):
        server.handle(RequestArrived(number, "m", rows, 0), now=2)
    assert ran(server.handle(RunFinished(1, 5), now=6)) == [(2, 3)]


def test_different_shapes_do_not_share_a_run() -> None:
    server = machine(spec())
    server.handle(RequestArrived(1, "m", 1, 0), now=1)
    for number, shapes in ((2, 7), (3, 8), (4, 7)):
        server.handle(RequestArrived(number, "m", 1, shapes), now=2)
    assert ran(server.handle(RunFinished(1, 5), now=6)) == [(2,)]


def test_the_urgent_go_first_and_the_rest_in_order() -> None:
    server = machine(spec(max_batch=1))
    server.handle(RequestArrived(1, "m", 1, 0), now=1)
    for number, priority in ((2, 3), (3, 2), (4, 3), (5, 1)):
        server.handle(RequestArrived(number, "m", 1, 0, priority), now=2)
    order = [ran(server.handle(RunFinished(run, 5), now=6 + run))[0][0] for run in range(1, 5)]
    assert order == [5, 3, 2, 4]


def test_of_two_models_the_one_whose_request_came_first() -> None:
    server = machine(spec("a"), spec("b"))
    server.handle(RequestArrived(1, "a", 1, 0), now=1)
    server.handle(RequestArrived(2, "b", 1, 0), now=2)
    server.handle(RequestArrived(3, "a", 1, 0), now=3)
    assert ran(server.handle(RunFinished(1, 5), now=6)) == [(2,)]


def test_a_batch_waits_for_more_as_long_as_it_may() -> None:
    server = machine(spec(wait_ns=10, preferred_batches=(3,)))
    assert server.handle(RequestArrived(1, "m", 1, 0), now=5) == []
    assert server.next_wakeup() == 15
    assert server.handle(RequestArrived(2, "m", 1, 0), now=6) == []
    assert ran(server.handle(RequestArrived(3, "m", 1, 0), now=7)) == [(1, 2, 3)]
    server.handle(RunFinished(1, 1), now=8)
    server.handle(RequestArrived(4, "m", 1, 0), now=20)
    assert ran(server.handle(Tick(), now=30)) == [(4,)]


def test_runs_share_the_cores_and_never_hold_one_twice() -> None:
    server = machine(spec("a", share=2), spec("b"), cores=3)
    first = [one for one in server.handle(RequestArrived(1, "a", 1, 0), now=1) if isinstance(one, Run)]
    second = [one for one in server.handle(RequestArrived(2, "b", 1, 0), now=1) if isinstance(one, Run)]
    assert [one.cores for one in (*first, *second)] == [(0, 1), (2,)]
    assert server.handle(RequestArrived(3, "a", 1, 0), now=1) == []
    assert server.handle(RunFinished(2, 1), now=2) == []
    third = [one for one in server.handle(RunFinished(1, 1), now=2) if isinstance(one, Run)]
    assert [one.cores for one in third] == [(0, 1)]


def one_run_of_100() -> ServerMachine:
    """Set up known run times of 100 and a report delay of about 1; the second run is expected to end at 300."""
    server = machine(spec(max_batch=1), ahead=True)
    server.handle(RequestArrived(1, "m", 1, 0), now=0)
    server.handle(RunFinished(1, 100), now=104)
    assert ran(server.handle(RequestArrived(2, "m", 1, 0), now=200)) == [(2,)]
    return server


def test_what_waits_follows_the_run_that_is_about_to_end() -> None:
    server = one_run_of_100()
    assert server.handle(RequestArrived(3, "m", 1, 0), now=210) == []
    assert server.next_wakeup() == 299
    (third,) = server.handle(Tick(), now=299)
    assert isinstance(third, Run)
    assert (third.requests, third.cores, third.after) == ((3,), (0,), 2)
    assert server.handle(RequestArrived(4, "m", 1, 0), now=300) == []  # a run that has not started cannot be followed
    assert server.next_wakeup() is None
    assert server.handle(RunFinished(2, 100), now=303) == []
    assert server.next_wakeup() == 402
    (fourth,) = server.handle(RunFinished(3, 47), now=350)  # earlier than expected
    assert isinstance(fourth, Run)
    assert (fourth.requests, fourth.cores, fourth.after) == ((4,), (0,), 0)


def test_overdue_run_is_not_followed() -> None:
    server = one_run_of_100()
    assert server.handle(RequestArrived(3, "m", 1, 0), now=310) == []
    assert server.next_wakeup() is None
    (third,) = server.handle(RunFinished(2, 200), now=401)
    assert isinstance(third, Run)
    assert third.after == 0


def test_a_deadline_that_cannot_be_met_is_refused_at_once() -> None:
    server = machine(spec(slo_ns=25 * MS, max_batch=1))
    server.handle(RequestArrived(1, "m", 1, 0), now=0)
    server.handle(RunFinished(1, 10 * MS), now=10 * MS)
    server.handle(RequestArrived(2, "m", 1, 0), now=10 * MS)  # runs
    assert server.handle(RequestArrived(3, "m", 1, 0), now=10 * MS) == []  # 20 ms
    (refused,) = server.handle(RequestArrived(4, "m", 1, 0), now=10 * MS)  # 30 ms
    assert isinstance(refused, RejectRequest)
    assert (refused.why, refused.retry_after_ns) == (RejectReason.TOO_LATE, 5 * MS)
    assert server.handle(RequestArrived(5, "m", 1, 0, 0, 40 * MS), now=10 * MS) == []  # its own timeout is longer


def test_request_whose_deadline_passed_in_the_queue_is_rejected() -> None:
    server = machine(spec(slo_ns=10))
    server.handle(RequestArrived(1, "m", 1, 0), now=0)
    server.handle(RequestArrived(2, "m", 1, 0), now=1)
    assert server.next_wakeup() == 11
    (refused,) = server.handle(Tick(), now=11)
    assert isinstance(refused, RejectRequest)
    assert (refused.request, refused.why, refused.retry_after_ns) == (
        2,
        RejectReason.TOO_LATE,
        10,
    )  # as long as it waited
    assert server.handle(RunFinished(1, 50), now=50) == []


def test_cancelled_request_is_never_run() -> None:
    server = machine(spec())
    server.handle(RequestArrived(1, "m", 1, 0), now=0)
    server.handle(RequestArrived(2, "m", 1, 0), now=0)
    server.handle(RequestArrived(3, "m", 1, 0), now=0)
    assert server.handle(RequestCancelled(2), now=1) == []
    assert server.handle(RequestCancelled(1), now=1) == []  # already running
    assert ran(server.handle(RunFinished(1, 5), now=6)) == [(3,)]


def test_a_model_that_is_loaded_again_ends_what_it_has() -> None:
    server = machine(spec())
    server.handle(RequestArrived(1, "m", 1, 0), now=0)
    server.handle(RequestArrived(2, "m", 1, 0), now=0)
    assert server.handle(ModelReady(spec(weight=2), 9), now=1) == []
    server.handle(RequestArrived(3, "m", 1, 0), now=2)
    (old,) = server.handle(RunFinished(1, 5), now=6)
    assert isinstance(old, Run)
    assert (old.key, old.requests) == (1, (2,))
    release, new = server.handle(RunFinished(2, 5), now=7)
    assert isinstance(release, ReleaseModel)
    assert release.key == 1
    assert isinstance(new, Run)
    assert (new.key, new.requests) == (9, (3,))


def test_requests_are_rejected_while_draining() -> None:
    server = machine(spec())
    server.handle(RequestArrived(1, "m", 1, 0), now=0)
    assert server.handle(DrainRequested(), now=1) == []
    (refused,) = server.handle(RequestArrived(2, "m", 1, 0), now=2)
    assert isinstance(refused, RejectRequest)
    assert refused.why is RejectReason.DRAINING
    assert [type(one) for one in server.handle(RunFinished(1, 5), now=6)] == [ReportDrained]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    "schedule, admit", [("fifo", "deadline"), ("fifo", "accept-all"), ("dstack", "deadline"), ("dstack", "accept-all")]
)
@settings(max_examples=examples(20, 600), deadline=None)
@given(data=st.data())
def test_every_request_ends_once_whatever_happens(  # noqa: C901, PLR0915  one scenario
    schedule: str, admit: str, ahead: bool, data: st.DataObject
) -> None:
    """Conservation: each request is run, rejected or cancelled, and no core is held twice by started runs."""
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
                    assert one.cores[0] == running[one.after].cores[0]  # started by the run on the core
                    assert sum(run.after == one.after for run in running.values()) == 1
                for request in one.requests:
                    assert ended.setdefault(request, "run") == "run"
            elif isinstance(one, RejectRequest):
                assert one.request not in ended
                ended[one.request] = "refused"
            elif isinstance(one, ReportDrained):
                drained += 1

    steps = data.draw(st.lists(st.sampled_from("aaabbbcccfffxtu"), max_size=40))
    for step in [*steps, "d"]:
        now += data.draw(st.integers(0, 12))
        if step in "abc":
            arrived += 1
            rows = data.draw(st.integers(1, 5))
            take(server.handle(RequestArrived(arrived, step, rows, rows % 2, data.draw(st.integers(0, 2))), now=now))
        elif step == "f" and running:
            run = data.draw(st.sampled_from(sorted(one for one in running if running[one].after not in running)))
            take(server.handle(RunFinished(running.pop(run).run, 7), now=now))
        elif step == "x" and arrived:
            victim = data.draw(st.integers(1, arrived))
            ended.setdefault(victim, "cancelled")
            take(server.handle(RequestCancelled(victim), now=now))
        elif step == "u":
            take(server.handle(ModelWithdrawn("c"), now=now))
        elif step == "d":
            take(server.handle(DrainRequested(), now=now))
        wake = server.next_wakeup()
        if wake is not None and wake <= now:
            take(server.handle(Tick(), now=now))
    for _ in range(200):
        if not running and server.next_wakeup() is None:
            break
        if running:
            now += 7
            take(server.handle(RunFinished(running.pop(min(running)).run, 7), now=now))
        else:
            now = max(now, server.next_wakeup() or now)
            take(server.handle(Tick(), now=now))
    assert sorted(ended) == list(range(1, arrived + 1))
    assert drained == 1
    assert server.waiting == 0


def test_an_unshared_run_takes_no_units_and_no_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unshared(Fifo):
        def next(self, view: View) -> StartRun | WaitUntil | None:
            found = super().next(view)
            return StartRun(found.key, found.requests, found.rows, 0) if isinstance(found, StartRun) else found

    monkeypatch.setitem(BUILT_IN, "unshared", Unshared)
    server = machine(spec("a"), spec("b", share=2), cores=2, schedule="unshared")
    begun = [
        server.handle(RequestArrived(number, model, 1, 0), now=1)[0] for number, model in ((1, "a"), (2, "b"), (3, "a"))
    ]
    assert [(one.units, one.cores) for one in begun if isinstance(one, Run)] == [(0, ())] * 3
    assert server.handle(RunFinished(2, 5), now=6) == []
    assert ran(server.handle(RequestArrived(4, "b", 1, 0), now=7)) == [(4,)]
    assert server.queues()[0].expected_ns(1, 2) == 0
    server.handle(RunFinished(1, 8), now=9)
    assert server.queues()[0].expected_ns(1, 2) == 8  # it had the whole device


def test_what_is_given_up_is_refused_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Choosy(Fifo):
        def next(self, view: View) -> StartRun | RejectQueued | WaitUntil | None:  # type: ignore[override]
            queues = list(view.queues)
            return RejectQueued(queues[0].key, 1) if queues[0].waiting[0].request % 2 else super().next(view)

    monkeypatch.setitem(BUILT_IN, "choosy", Choosy)
    server = machine(spec(), schedule="choosy")
    (refused,) = server.handle(RequestArrived(1, "m", 1, 0), now=1)
    assert isinstance(refused, RejectRequest)
    assert (refused.request, refused.why, refused.retry_after_ns) == (
        1,
        RejectReason.TOO_LATE,
        SECOND,
    )  # it did not wait
    assert ran(server.handle(RequestArrived(2, "m", 1, 0), now=2)) == [(2,)]
    assert server.waiting == 0


def test_one_slow_run_does_not_block_admission_for_ever() -> None:
    """One run takes ten times its estimate because of a stall; under light load, all requests are admitted again."""
    times = RunTimes(1, (RunTime(1, 1, 10 * MS, 11 * MS),), 1)
    server = ServerMachine(ServerSettings(1, schedule="dstack"))
    server.handle(ModelReady(spec(slo_ns=30 * MS), 1, times), now=0)
    (first,) = server.handle(RequestArrived(1, "m", 1, 0), now=SECOND)
    assert isinstance(first, Run)
    now = SECOND + 400 * MS
    server.handle(RunFinished(1, 300 * MS), now=now)
    for number in range(2, 40):
        now += 50 * MS
        (run,) = server.handle(RequestArrived(number, "m", 1, 0), now=now)
        assert isinstance(run, Run)
        server.handle(RunFinished(run.run, 10 * MS), now=now + 10 * MS)


def test_single_stall_has_a_limited_effect() -> None:
    """The report of one run was late: requests with their own timeouts are still admitted while others run."""
    server = ServerMachine(ServerSettings(1, schedule="dstack"))
    server.handle(ModelReady(spec(), 1, RunTimes(1, (RunTime(1, 1, 10 * MS, 11 * MS),), 1)), now=0)
    server.handle(RequestArrived(1, "m", 1, 0), now=SECOND)
    server.handle(RunFinished(1, 10 * MS), now=SECOND + 800 * MS)
    assert ran(server.handle(RequestArrived(2, "m", 1, 0, 0, 200 * MS), now=SECOND + 810 * MS)) == [(2,)]
    assert server.handle(RequestArrived(3, "m", 1, 0, 0, 200 * MS), now=SECOND + 811 * MS) == []
    assert ran(server.handle(RunFinished(2, 10 * MS), now=SECOND + 820 * MS)) == [(3,)]


def test_models_come_and_go_between_plans() -> None:
    server = machine(spec("a", slo_ns=SECOND), spec("b", slo_ns=SECOND), schedule="dstack")
    for number, name in ((1, "a"), (2, "b")):
        (run,) = server.handle(RequestArrived(number, name, 1, 0), now=number * SECOND)
        assert isinstance(run, Run)
        server.handle(RunFinished(run.run, MS), now=number * SECOND + MS)
    assert [type(one) for one in server.handle(ModelWithdrawn("a"), now=3 * SECOND)] == [ReleaseModel]
    assert ran(server.handle(RequestArrived(3, "b", 1, 0), now=4 * SECOND)) == [(3,)]
    server.handle(ModelReady(spec("a"), 7), now=5 * SECOND)
    server.handle(RunFinished(3, MS), now=5 * SECOND)
    assert ran(server.handle(RequestArrived(4, "a", 1, 0), now=6 * SECOND)) == [(4,)]
