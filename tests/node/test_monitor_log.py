"""A device that harms online tenants loses its offline tenants and gets them back, with a node and a software GPU."""

import sys
from pathlib import Path

import pytest

from cotenant.node.model.action import ReportGpuHealth, SignalTenant
from cotenant.node.model.protection import Health
from tests.support.node_processes import NodeHarness, until

pytestmark = pytest.mark.live

PROGRAM = Path(__file__).parents[1] / "programs" / "tenant.py"
WORK = ("--gpu", "soft:0", "--", sys.executable, str(PROGRAM))
QUICK = ("--watch-period", "50ms", "--high-samples", "2", "--over-samples", "2", "--calm-samples", "3")
SHORT = ("--first-samples", "1", "--backoff", "200ms", "--backoff-cap", "1s", "--loaded", "0%")


def states(node_harness: NodeHarness) -> list[Health]:
    """Every state that the device has had, in order."""
    return [
        action.watch.health
        for turn in node_harness.journal()
        for action in turn.actions
        if isinstance(action, ReportGpuHealth)
    ]


def test_slow_clock_evicts_offline_tenants_until_it_recovers(node_harness: NodeHarness) -> None:
    assert node_harness.run("softgpu", "create", "--gpu", "v100").returncode == 0
    try:
        node_harness.node(*QUICK, *SHORT)
        web = node_harness.tenant("web", "--online", *WORK)
        batch = node_harness.tenant("batch", "--restart", "always", *WORK)
        until(lambda: Health.HEALTHY in states(node_harness))
        before = len(states(node_harness))
        first = node_harness.slots()["batch"]
        assert node_harness.run("softgpu", "fault", "slow-clock", "--factor", "0.3").returncode == 0
        until(lambda: "batch" in node_harness.endings())
        assert states(node_harness)[before : before + 2] == [Health.UNHEALTHY, Health.OVERLIMIT]
        assert "web" in node_harness.slots()
        assert node_harness.run("softgpu", "fault", "slow-clock", "--factor", "1").returncode == 0
        until(lambda: "batch" in node_harness.slots())
        assert node_harness.slots()["batch"] > first  # the same slot for the second time, or another
        seen = states(node_harness)[before:]
        assert seen[-2:] == [Health.UNHEALTHY, Health.HEALTHY]
        assert (web.poll(), batch.poll()) == (None, None)
        [why] = {
            action.why for turn in node_harness.journal() for action in turn.actions if isinstance(action, SignalTenant)
        }
        assert why.startswith("evicted: GPU 0 was over its limit (SM clock at ")
    finally:
        node_harness.run("softgpu", "destroy")
