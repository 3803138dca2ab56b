"""Tests of the state machine of the cluster controller."""

import pytest

from cotenant.cluster.model.cluster import Attempt, AttemptReport, JobEnd, JobState
from cotenant.cluster.model.event import (
    ClusterStarted,
    JobCancelled,
    JobSubmitted,
    NodeDrained,
    NodeGone,
    NodeReport,
    StartJob,
    StopJob,
)
from cotenant.cluster.state.cluster import ClusterMachine
from cotenant.units.instant import SECOND_NS
from tests.support.cluster_steps import BUSY, GIB, GPU, ClusterScript, replaced, runs, settings, starts
from tests.support.tools import ROOT


def test_job_is_started_reported_and_done() -> None:
    story = ClusterScript()
    story.join("a")
    spec = story.submit("job")
    (order,) = story.until(2)
    assert order == StartJob("a", Attempt("job", 1), (0,), 1_000_000, spec, 0, 1)
    assert story.state("job") is JobState.STARTING
    assert story.report("a", runs(order, 300_000), seen=1) == []
    assert (story.state("job"), story.job("job").progress_ppm) == (JobState.RUNNING, 300_000)
    story.now_s = 9
    assert story.report("a", runs(order, 900_000, JobEnd.DONE), seen=1) == []
    reported = story.job("job")
    assert (reported.state, reported.progress_ppm, reported.ended) == (JobState.DONE, 1_000_000, 9 * SECOND_NS)
    assert story.report("a", runs(order, end=JobEnd.DONE), seen=1) == []  # an end may be reported again
    assert story.job("job") == reported


def test_lost_order_is_repeated_until_received() -> None:
    story = ClusterScript()
    story.join("a")
    story.submit("job")
    (order,) = story.until(2)
    assert story.report("a") == [order]
    assert story.report("a", runs(order), seen=1) == []
    assert story.report("a") == [order]  # a report that was sent before the order arrived


def test_received_attempt_missing_from_a_report_restarts_elsewhere() -> None:
    story = ClusterScript()
    story.join("a")
    story.submit("job")
    (order,) = story.until(2)
    story.report("a", runs(order, 400_000), seen=1)
    story.join("b", replaced(GPU, offer_ppm=900_000))
    assert story.report("a", seen=1) == []
    assert (story.state("job"), story.job("job").evictions) == (JobState.WAITING, 1)
    (again,) = story.until(12)
    assert isinstance(again, StartJob)
    assert (again.attempt, again.progress_ppm) == (Attempt("job", 2), 400_000)


def test_restarted_node_has_ended_attempts_that_it_does_not_name() -> None:
    story = ClusterScript()
    story.join("a", GPU, GPU)
    for name in ("one", "two"):
        story.submit(name)
    one, two = story.until(2)
    story.report("a", runs(one), runs(two), seen=2)
    story.reported["a"] = NodeReport("a", 2, (GPU, GPU))
    story.report("a", runs(two))
    assert (story.state("one"), story.state("two")) == (JobState.WAITING, JobState.RUNNING)
    assert story.tell(NodeReport("a", 1, (GPU, GPU), (runs(one),), 2)) == []  # sent before the restart
    assert story.state("two") is JobState.RUNNING


def test_silent_node_keeps_its_jobs_until_lease_and_grace_end() -> None:
    story = ClusterScript()
    story.join("a")
    story.submit("job")
    (order,) = story.until(2)
    story.report("a", runs(order), seen=1)
    story.now_s = 12
    story.join("b")
    assert starts(story.until(21)) == {}
    story.report("b")
    assert story.state("job") is JobState.RUNNING
    story.until(22)
    assert story.state("job") is JobState.LOST
    assert starts(story.until(26)) == {}
    assert starts(story.until(33)) == {"job": ("b", (0,))}
    assert story.report("a", runs(order), seen=1) == [StopJob("a", order_attempt(order), "it is not wanted here")]
    assert not story.machine.inventory.open[0], "no job starts on a GPU with an unwanted attempt"
    story.report("a", runs(order, end=JobEnd.EVICTED), seen=1)
    assert story.machine.inventory.open[0]


def order_attempt(order: object) -> Attempt:
    assert isinstance(order, StartJob)
    return order.attempt


def test_silent_node_that_reports_in_time_keeps_its_jobs() -> None:
    story = ClusterScript()
    story.join("a")
    story.submit("job")
    (order,) = story.until(2)
    story.report("a", runs(order), seen=1)
    story.until(23)
    assert story.state("job") is JobState.LOST
    assert story.report("a", runs(order, 500_000), seen=1) == []
    assert story.state("job") is JobState.RUNNING


@pytest.mark.parametrize("end, failures", [(JobEnd.FAILED, 1), (JobEnd.REFUSED, 0)])
def test_job_pauses_after_failure_or_refusal(end: JobEnd, failures: int) -> None:
    story = ClusterScript(round_ns=SECOND_NS)
    story.join("a")
    story.submit("job", retries=1)
    (order,) = story.until(1)
    story.report("a", runs(order, end=end), seen=1)
    assert (story.state("job"), story.job("job").failures) == (JobState.WAITING, failures)
    assert starts(story.until(10)) == {}
    assert starts(story.until(12)) == {"job": ("a", (0,))}


def test_job_fails_after_its_retries_and_evictions_do_not_count() -> None:
    story = ClusterScript(round_ns=SECOND_NS, lease_ns=3600 * SECOND_NS)
    story.join("a")
    story.submit("job", retries=1)
    for end in (JobEnd.FAILED, JobEnd.EVICTED, JobEnd.EVICTED, JobEnd.FAILED):
        (order,) = story.until(story.now_s + 65)[-1:]  # after an eviction, twice as long each time
        story.report("a", runs(order, end=end), seen=99)
    assert (story.state("job"), story.job("job").failures, story.job("job").evictions) == (JobState.FAILED, 2, 2)
    assert starts(story.until(story.now_s + 60)) == {}


def test_cancelled_job_keeps_its_gpus_until_it_ends() -> None:
    story = ClusterScript()
    story.join("a")
    story.submit("job")
    story.submit("next")
    (order,) = story.until(2)
    assert story.said(JobCancelled("next")) == []
    assert story.state("next") is JobState.CANCELLED
    assert story.said(JobCancelled("job")) == ["stop job#1 on a: cancelled"]
    assert story.report("a", runs(order), seen=1) == [StopJob("a", Attempt("job", 1), "cancelled")]
    assert story.state("job") is JobState.STOPPING
    story.report("a", runs(order, end=JobEnd.EVICTED), seen=1)
    assert story.state("job") is JobState.CANCELLED
    assert story.tell(JobCancelled("job")) == []


def test_job_done_before_its_cancellation_is_done() -> None:
    story = ClusterScript()
    story.join("a")
    story.submit("job")
    (order,) = story.until(2)
    story.tell(JobCancelled("job"))
    story.report("a", runs(order, end=JobEnd.DONE), seen=1)
    assert story.state("job") is JobState.DONE
    assert story.tell(JobCancelled("job")) == []
    assert story.state("job") is JobState.DONE


def test_repeated_submission_and_unknown_names_change_nothing() -> None:
    story = ClusterScript()
    spec = story.submit("job")
    before = story.machine.snapshot()
    for event in (JobSubmitted(spec), JobSubmitted(replaced(spec, priority=3)), JobCancelled("other")):
        assert story.tell(event) == []
    assert story.tell(NodeDrained("nowhere", on=True)) == []
    assert story.machine.snapshot() == before


def test_drained_node_is_emptied_and_gets_no_jobs() -> None:
    story = ClusterScript()
    story.join("a")
    story.submit("job")
    (order,) = story.until(2)
    story.report("a", runs(order), seen=1)
    assert story.said(NodeDrained("a", on=True)) == ["stop job#1 on a: its node is drained"]
    story.report("a", runs(order, end=JobEnd.FAILED), seen=1)
    assert (story.state("job"), story.job("job").failures) == (JobState.WAITING, 0), (
        "an attempt that was stopped does not count as failed"
    )
    assert starts(story.until(15)) == {}
    story.tell(NodeDrained("a", on=False))
    assert starts(story.until(30)) == {"job": ("a", (0,))}


def test_jobs_of_a_departed_node_restart_elsewhere() -> None:
    story = ClusterScript()
    story.join("a")
    story.submit("job")
    story.until(2)
    story.tell(NodeGone("a"))
    assert story.state("job") is JobState.WAITING
    assert list(story.machine.inventory.nodes) == []
    story.join("b")
    assert starts(story.until(12)) == {"job": ("b", (0,))}


def test_restarted_controller_grants_full_leases() -> None:
    story = ClusterScript()
    story.join("a")
    story.submit("job")
    (order,) = story.until(2)
    story.report("a", runs(order), seen=1)
    story.now_s = 1000
    story.tell(ClusterStarted(settings()))
    story.until(1019)
    assert story.state("job") is JobState.RUNNING
    story.until(1020)
    assert story.state("job") is JobState.LOST


def test_unknown_attempt_numbers_are_never_issued_again() -> None:
    story = ClusterScript()
    story.join("a")
    unknown = AttemptReport(Attempt("forgotten", 41), (0,))
    assert story.report("a", unknown, seen=41) == [StopJob("a", unknown.attempt, "it is not wanted here")]
    story.submit("job")
    story.report("a", seen=41)
    (order,) = story.until(15)
    assert order_attempt(order).number == 42


def test_node_silent_for_a_day_is_forgotten_unless_drained() -> None:
    story = ClusterScript(round_ns=3600 * SECOND_NS, lease_ns=600 * SECOND_NS)
    for name in ("a", "b", "c"):
        story.join(name)
    story.tell(NodeDrained("b", on=True))
    story.until(86_000)
    assert list(story.machine.inventory.nodes) == ["a", "b", "c"]
    story.report("c")
    story.until(90_000)
    assert list(story.machine.inventory.nodes) == ["b", "c"]
    story.join("a")
    assert [node.is_silent for node in story.machine.inventory.nodes.values()] == [True, True, False]


def test_implausible_attempt_number_does_not_advance_the_counter() -> None:
    story = ClusterScript()
    story.join("a")
    story.report("a", AttemptReport(Attempt("x", (1 << 63) - 1), (0,)))
    assert story.machine.next_attempt == 1


def test_finished_jobs_are_remembered_up_to_a_limit() -> None:
    story = ClusterScript(remember=2)
    for name in ("one", "two", "three"):
        story.submit(name)
        story.tell(JobCancelled(name))
    assert [reported.spec.name for reported in story.machine.jobs()] == ["two", "three"]


# After an intended change of decisions, review the diff that this test prints:
#   .venv/bin/python -m pytest -q tests/cluster/test_state.py -k golden
def test_cluster_log_equals_the_golden_log() -> None:
    golden = (ROOT / "scenarios" / "cluster-controller.log").read_text(encoding="utf-8")
    assert "\n".join(run_script()) + "\n" == golden


def run_script() -> list[str]:
    """Run a script with every kind of event and return its log."""
    story = ClusterScript(slowdown_limit_ppm=100_000_000)
    story.join("a", GPU, replaced(GPU, offer_ppm=400_000, online=(BUSY,)))
    for name, user, options in (
        ("bert", "ann", {"memory_bytes": 8 * GIB, "profile": "bert"}),
        ("gang", "ann", {"gpus": 2}),
        ("alone", "bob", {"avoid": ("web",)}),
        ("more", "bob", {}),
    ):
        story.submit(name, user, **options)
    (gang,) = story.until(2)
    story.report("a", runs(gang, 100_000), seen=1)
    story.join("b", GPU, GPU)
    bert, more = story.until(4)
    story.report("b", runs(bert), runs(more, 50_000, rate_ppm=900_000), seen=3)
    story.until(14)
    story.tell(NodeDrained("a", on=True))
    story.report("a", runs(gang, 250_000, JobEnd.EVICTED), seen=1)
    story.report("b", runs(bert, end=JobEnd.FAILED), runs(more, end=JobEnd.DONE), seen=3)
    story.tell(JobCancelled("gang"))
    story.tell(JobCancelled("gang"))
    _, bert = story.until(26)
    head = story.machine.snapshot()
    story.machine = ClusterMachine()
    story.tell(head)
    story.tell(ClusterStarted(settings()))
    story.tell(NodeGone("a"))
    story.report("b", runs(bert, 300_000), seen=5)
    story.until(60)
    story.report("b", runs(bert, 500_000), seen=5)
    story.join("c")
    story.until(70)
    return story.lines
