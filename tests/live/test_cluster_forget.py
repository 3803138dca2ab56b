"""When may a node be forgotten? Not before whatever ran there must have ended."""

from typing import Any

from cotenant.domain.cluster import JobState
from cotenant.domain.clusters import NodeTold
from cotenant.live.cluster.clerk import Clerk
from tests.machine.cluster_steps import GRACE, LEASE, Story, runs


def test_a_node_whose_last_report_has_no_gpus_is_not_forgotten_before_the_grace() -> None:
    story = Story()
    story.join("a")
    story.submit("job")
    (order,) = story.until(2)
    story.tell(NodeTold("a", 1, (), (runs(order),), 1))
    nobody: Any = None
    clerk = Clerk(nobody, nobody, story.machine, nobody, "")
    story.until(2 + LEASE)
    assert story.state("job") is JobState.LOST
    refused = clerk.why_not_forget("a")
    assert refused is not None
    assert "not yet given up" in refused.detail
    story.until(2 + LEASE + GRACE)
    assert clerk.why_not_forget("a") is None
    assert clerk.why_not_forget("b") is not None
