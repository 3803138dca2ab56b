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


def spec(name: str = "m", **overrides: Any) -> ModelSpec:
    return ModelSpec(name, "1", "test", (), (), **{"max_batch": 4, **overrides})


def machine(*specs: ModelSpec, cores: int = 1, **overrides: Any) -> ServerMachine:
    server = ServerMachine(ServerSettings(cores, **{"schedule": "fifo", **overrides}))
    for key, model_spec in enumerate(specs, 1):
        assert server.handle(ModelReady(model_spec, key), now=0) == []
    return server


def runs_of(actions: list[Any]) -> list[tuple[int, ...]]:
    return [action.requests for action in actions if isinstance(action, Run)]


def test_queued_requests_share_the_next_run() -> None:
    server = machine(spec())
    assert runs_of(server.handle(RequestArrived(1, "m", 1, 0), now=1)) == [(1,)]
    for number in (2, 3, 4):
        assert server.handle(RequestArrived(number, "m", 1, 0), now=2) == []
    assert runs_of(server.handle(RunFinished(1, 5), now=6)) == [(2, 3, 4)]


def test_batch_does_not_exceed_max_batch() -> None:
    server = machine(spec())
    server.handle(RequestArrived(1, "m", 1, 0), now=1)
    for number, rows in ((2, 2), (3, 2), (4, 1)):
        server.handle(RequestArrived(number, "m", rows, 0), now=2)
    assert runs_of(server.handle(RunFinished(1, 5), now=6)) == [(2, 3)]


def test_different_shapes_do_not_share_a_run() -> None:
    server = machine(spec())
    server.handle(RequestArrived(1, "m", 1, 0), now=1)
    for number, shapes in ((2, 7), (3, 8), (4, 7)):
        server.handle(RequestArrived(number, "m", 1, shapes), now=2)
    assert runs_of(server.handle(RunFinished(1, 5), now=6)) == [(2,)]


def test_requests_run_by_priority_then_arrival() -> None:
    server = machine(spec(max_batch=1))
    server.handle(RequestArrived(1, "m", 1, 0), now=1)
    for number, priority in ((2, 3), (3, 2), (4, 3), (5, 1)):
        server.handle(RequestArrived(number, "m", 1, 0, priority), now=2)
    order = [runs_of(server.handle(RunFinished(run, 5), now=6 + run))[0][0] for run in range(1, 5)]
    assert order == [5, 3, 2, 4]


def test_model_with_the_oldest_request_runs_first() -> None:
    server = machine(spec("a"), spec("b"))
    server.handle(RequestArrived(1, "a", 1, 0), now=1)
    server.handle(RequestArrived(2, "b", 1, 0), now=2)
    server.handle(RequestArrived(3, "a", 1, 0), now=3)
    assert runs_of(server.handle(RunFinished(1, 5), now=6)) == [(2,)]


def test_incomplete_batch_waits_up_to_its_limit() -> None:
    server = machine(spec(wait_ns=10, preferred_batches=(3,)))
    assert server.handle(RequestArrived(1, "m", 1, 0), now=5) == []
    assert server.next_wakeup() == 15
    assert server.handle(RequestArrived(2, "m", 1, 0), now=6) == []
    assert runs_of(server.handle(RequestArrived(3, "m", 1, 0), now=7)) == [(1, 2, 3)]
    server.handle(RunFinished(1, 1), now=8)
    server.handle(RequestArrived(4, "m", 1, 0), now=20)
    assert runs_of(server.handle(Tick(), now=30)) == [(4,)]


def test_runs_share_the_cores_and_never_hold_one_twice() -> None:
    server = machine(spec("a", share=2), spec("b"), cores=3)
    first = [action for action in server.handle(RequestArrived(1, "a", 1, 0), now=1) if isinstance(action, Run)]
    second = [action for action in server.handle(RequestArrived(2, "b", 1, 0), now=1) if isinstance(action, Run)]
    assert [run.cores for run in (*first, *second)] == [(0, 1), (2,)]
    assert server.handle(RequestArrived(3, "a", 1, 0), now=1) == []
    assert server.handle(RunFinished(2, 1), now=2) == []
    third = [action for action in server.handle(RunFinished(1, 1), now=2) if isinstance(action, Run)]
    assert [run.cores for run in third] == [(0, 1)]


def machine_with_a_run_of_100() -> ServerMachine:
    """Return a machine with run times of 100 and a report delay of about 1; its second run should end at 300."""
    server = machine(spec(max_batch=1), ahead=True)
    server.handle(RequestArrived(1, "m", 1, 0), now=0)
    server.handle(RunFinished(1, 100), now=104)
    assert runs_of(server.handle(RequestArrived(2, "m", 1, 0), now=200)) == [(2,)]
    return server


def test_queued_request_follows_the_run_about_to_end() -> None:
    server = machine_with_a_run_of_100()
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
    server = machine_with_a_run_of_100()
    assert server.handle(RequestArrived(3, "m", 1, 0), now=310) == []
    assert server.next_wakeup() is None
    (third,) = server.handle(RunFinished(2, 200), now=401)
    assert isinstance(third, Run)
    assert third.after == 0


def test_request_that_cannot_meet_its_deadline_is_rejected_on_arrival() -> None:
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
    assert runs_of(server.handle(RunFinished(1, 5), now=6)) == [(3,)]


def test_reloaded_model_finishes_requests_of_the_old_instance() -> None:
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
    assert [type(action) for action in server.handle(RunFinished(1, 5), now=6)] == [ReportDrained]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    "schedule, admit", [("fifo", "deadline"), ("fifo", "accept-all"), ("dstack", "deadline"), ("dstack", "accept-all")]
)
@settings(max_examples=examples(20, 600), deadline=None)
@given(data=st.data())
def test_every_request_ends_exactly_once(  # noqa: C901, PLR0915  one scenario
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
        for action in actions:
            if isinstance(action, Run):
                running[action.run] = action
                started = [run for run in running.values() if run.after not in running]
                used_cores = [core for run in started for core in run.cores]
                assert len(used_cores) == len(set(used_cores)) <= 2
                if action.after:
                    assert ahead
                    assert action.cores[0] == running[action.after].cores[0]  # started by the run on the core
                    assert sum(run.after == action.after for run in running.values()) == 1
                for request in action.requests:
                    assert ended.setdefault(request, "run") == "run"
            elif isinstance(action, RejectRequest):
                assert action.request not in ended
                ended[action.request] = "refused"
            elif isinstance(action, ReportDrained):
                drained += 1

    steps = data.draw(st.lists(st.sampled_from("aaabbbcccfffxtu"), max_size=40))
    for step in [*steps, "d"]:
        now += data.draw(st.integers(0, 12))
        if step in "abc":
            arrived += 1
            rows = data.draw(st.integers(1, 5))
            take(server.handle(RequestArrived(arrived, step, rows, rows % 2, data.draw(st.integers(0, 2))), now=now))
        elif step == "f" and running:
            run = data.draw(
                st.sampled_from(sorted(number for number in running if running[number].after not in running))
            )
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


def test_unshared_run_takes_no_units_and_no_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unshared(Fifo):
        def next(self, view: View) -> StartRun | WaitUntil | None:
            choice = super().next(view)
            return StartRun(choice.key, choice.requests, choice.rows, 0) if isinstance(choice, StartRun) else choice

    monkeypatch.setitem(BUILT_IN, "unshared", Unshared)
    server = machine(spec("a"), spec("b", share=2), cores=2, schedule="unshared")
    actions = [
        server.handle(RequestArrived(number, model, 1, 0), now=1)[0] for number, model in ((1, "a"), (2, "b"), (3, "a"))
    ]
    assert [(action.units, action.cores) for action in actions if isinstance(action, Run)] == [(0, ())] * 3
    assert server.handle(RunFinished(2, 5), now=6) == []
    assert runs_of(server.handle(RequestArrived(4, "b", 1, 0), now=7)) == [(4,)]
    assert server.queues()[0].expected_ns(1, 2) == 0
    server.handle(RunFinished(1, 8), now=9)
    assert server.queues()[0].expected_ns(1, 2) == 8  # it had the whole device


def test_request_that_the_policy_gives_up_is_rejected_and_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert runs_of(server.handle(RequestArrived(2, "m", 1, 0), now=2)) == [(2,)]
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
    assert runs_of(server.handle(RequestArrived(2, "m", 1, 0, 0, 200 * MS), now=SECOND + 810 * MS)) == [(2,)]
    assert server.handle(RequestArrived(3, "m", 1, 0, 0, 200 * MS), now=SECOND + 811 * MS) == []
    assert runs_of(server.handle(RunFinished(2, 10 * MS), now=SECOND + 820 * MS)) == [(3,)]


def test_models_can_be_withdrawn_and_added_between_plans() -> None:
    server = machine(spec("a", slo_ns=SECOND), spec("b", slo_ns=SECOND), schedule="dstack")
    for number, name in ((1, "a"), (2, "b")):
        (run,) = server.handle(RequestArrived(number, name, 1, 0), now=number * SECOND)
        assert isinstance(run, Run)
        server.handle(RunFinished(run.run, MS), now=number * SECOND + MS)
    assert [type(action) for action in server.handle(ModelWithdrawn("a"), now=3 * SECOND)] == [ReleaseModel]
    assert runs_of(server.handle(RequestArrived(3, "b", 1, 0), now=4 * SECOND)) == [(3,)]
    server.handle(ModelReady(spec("a"), 7), now=5 * SECOND)
    server.handle(RunFinished(3, MS), now=5 * SECOND)
    assert runs_of(server.handle(RequestArrived(4, "a", 1, 0), now=6 * SECOND)) == [(4,)]
