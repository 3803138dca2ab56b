"""Tests of limits on attempt numbers and of leases."""

import pytest

from cotenant.cluster.model.cluster import Attempt, AttemptReport, JobState
from cotenant.cluster.model.event import ClusterStarted, StartJob, StopJob
from cotenant.units.instant import SECOND_NS
from tests.support.cluster_steps import ClusterScript, runs, settings, starts

LARGEST = (1 << 63) - 1


def test_node_cannot_exhaust_attempt_numbers() -> None:
    story = ClusterScript()
    story.join("a")
    implausible = Attempt("x", LARGEST)
    assert story.report("a", AttemptReport(implausible, (9, -1))) == [
        StopJob("a", implausible, "it is not wanted here")
    ]
    earlier = Attempt("y", 1000)  # issued by a controller that has lost its state
    story.report("a", AttemptReport(earlier, (0,)))
    story.report("a")
    story.submit("job")
    (order,) = story.until(11)
    assert isinstance(order, StartJob)
    assert order.attempt.number == 1001


@pytest.mark.parametrize("reports_again", [False, True])
def test_shorter_lease_does_not_end_earlier_leases(reports_again: bool) -> None:
    story = ClusterScript()  # 20 s and 5 s
    story.join("a")
    story.submit("job")
    (order,) = story.until(2)
    story.report("a", runs(order), seen=1)  # this lease is valid until 22 s, and its grace until 27 s
    shorter = settings(lease_ns=2 * SECOND_NS, grace_ns=SECOND_NS)
    story.tell(ClusterStarted(shorter))
    story.join("b")
    if reports_again:
        story.now_s = 3
        story.report("a", runs(order), seen=1)  # the answer to this report may be lost
    reported = story.machine.snapshot()
    story.machine.handle(reported, now=story.now_s * SECOND_NS)
    story.tell(ClusterStarted(shorter))
    for second in range(4, 27):
        story.until(second)
        story.report("b")
        assert story.state("job") in (JobState.RUNNING, JobState.LOST), second
    placed = starts(story.until(27))
    for second in range(28, 60):
        story.report("b")
        placed |= starts(story.until(second))
    assert placed == {"job": ("b", (0,))}
