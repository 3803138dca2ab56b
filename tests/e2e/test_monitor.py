"""Does a device that harms online work lose its offline tenants, and get them back? With a node and a soft GPU."""

import sys
from pathlib import Path

from cotenant.domain.action import Signal, Watch
from cotenant.domain.protect import Health
from tests.e2e.stage import Stage, until

PROGRAM = Path(__file__).parents[1] / "live" / "programs" / "tenant.py"
WORK = ("--gpu", "soft:0", "--", sys.executable, str(PROGRAM))
QUICK = ("--watch-period", "50ms", "--high-samples", "2", "--over-samples", "2", "--calm-samples", "3")
SHORT = ("--first-samples", "1", "--backoff", "200ms", "--backoff-cap", "1s", "--loaded", "0%")


def states(stage: Stage) -> list[Health]:
    """Every state that the device has had, in order."""
    return [action.watch.health for turn in stage.journal() for action in turn.actions if isinstance(action, Watch)]


def test_a_slow_clock_sends_offline_away_until_it_is_over(stage: Stage) -> None:
    assert stage.run("softgpu", "create", "--gpu", "v100").returncode == 0
    try:
        stage.node(*QUICK, *SHORT)
        web = stage.tenant("web", "--online", *WORK)
        batch = stage.tenant("batch", "--restart", "always", *WORK)
        until(lambda: Health.HEALTHY in states(stage))
        before = len(states(stage))
        first = stage.slots()["batch"]
        assert stage.run("softgpu", "fault", "slow-clock", "--factor", "0.3").returncode == 0
        until(lambda: "batch" in stage.endings())
        assert states(stage)[before : before + 2] == [Health.UNHEALTHY, Health.OVERLIMIT]
        assert "web" in stage.slots()
        assert stage.run("softgpu", "fault", "slow-clock", "--factor", "1").returncode == 0
        until(lambda: "batch" in stage.slots())
        assert stage.slots()["batch"] > first  # the same slot for the second time, or another
        seen = states(stage)[before:]
        assert seen[-2:] == [Health.UNHEALTHY, Health.HEALTHY]
        assert (web.poll(), batch.poll()) == (None, None)
        [why] = {action.why for turn in stage.journal() for action in turn.actions if isinstance(action, Signal)}
        assert why.startswith("evicted: GPU 0 was over its limit (SM clock at ")
    finally:
        stage.run("softgpu", "destroy")
