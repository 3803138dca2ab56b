"""Tests of log lines of the controller."""

import pytest

from cotenant.cluster.daemon.observer import ControllerObserver
from cotenant.cluster.model.cluster import Attempt, AttemptReport, JobEnd, Quota
from cotenant.cluster.model.event import (
    AckEnd,
    Answer,
    ClusterAction,
    ClusterEvent,
    ClusterWoke,
    JobCancelled,
    JobSubmitted,
    NodeDrained,
    NodeGone,
    NodeReport,
    QuotaSet,
    StartJob,
    StopJob,
)
from cotenant.node.model.admission import Reason, Reject
from tests.support.cluster_controllers import job, report

pytestmark = pytest.mark.live

ATTEMPT = Attempt("j1", 3)
START = StartJob("n1", ATTEMPT, (0, 1), 500_000, job("j1"))
STOP = StopJob("n1", ATTEMPT, "cancelled")
REFUSED = Answer(1, Reject(Reason.UNKNOWN_JOB, "no job is called 'j9'"))


def test_each_event_has_its_log_line() -> None:
    said: list[str] = []
    observer = ControllerObserver(said.append)
    ended = AttemptReport(ATTEMPT, (0, 1), end=JobEnd.DONE, detail="exit 0")
    turns: list[tuple[ClusterEvent, list[ClusterAction]]] = [
        (JobSubmitted(job("j1"), 1), [Answer(1)]),
        (JobSubmitted(job("j9"), 1), [REFUSED]),
        (report("n1"), []),
        (ClusterWoke(), [START]),
        (report("n1"), [START]),  # said again, since the node did not know it
        (JobCancelled("j1"), [STOP]),
        (JobCancelled("j9", 1), [REFUSED]),
        (report("n1"), [STOP]),
        (NodeReport("n1", 1, (), (ended,)), [AckEnd("n1", ATTEMPT)]),
        (NodeDrained("n1", on=True), []),
        (NodeDrained("n1", on=False), []),
        (QuotaSet(Quota("anna", 2)), []),
        (NodeGone("n1"), []),
    ]
    for event, actions in turns:
        observer.saw(0, event, actions)
    assert said == [
        "anna submitted j1",
        "anna submitted j9: refused, no job is called 'j9'",
        "attempt 3 at j1 starts on n1, GPU 0, 1",
        "j1 was cancelled",
        "attempt 3 at j1 on n1 is to end: cancelled",
        "attempt 3 at j1 on n1 is done (exit 0)",
        "node n1 is drained",
        "node n1 takes jobs again",
        "anna may hold 2 GPUs at once, weight 1",
        "node n1 left",
    ]
