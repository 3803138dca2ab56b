"""Tests of attempts that are forgotten."""

from typing import Any

import pytest

from cotenant.cluster.daemon.admin_service import AdminService
from cotenant.cluster.model.cluster import JobState
from cotenant.cluster.model.event import NodeReport
from tests.support.cluster_steps import GRACE, LEASE, ClusterScript, runs

pytestmark = pytest.mark.live


def test_node_without_gpus_is_kept_until_the_grace_ends() -> None:
    story = ClusterScript()
    story.join("a")
    story.submit("job")
    (order,) = story.until(2)
    story.tell(NodeReport("a", 1, (), (runs(order),), 1))
    absent: Any = None
    admin = AdminService(absent, absent, story.machine, absent, "")
    story.until(2 + LEASE)
    assert story.state("job") is JobState.LOST
    refused = admin.why_not_forget("a")
    assert refused is not None
    assert "not yet given up" in refused.detail
    story.until(2 + LEASE + GRACE)
    assert admin.why_not_forget("a") is None
    assert admin.why_not_forget("b") is not None
