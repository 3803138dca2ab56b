"""The requests of a tenant are visible to observers, and late ones raise the online share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from cotenant.cli.render.requests import served_so_far
from cotenant.node.client.connection import read_activity
from cotenant.node.model.event import OnlineShareProposed
from cotenant.softgpu import manage
from cotenant.softgpu.commands import home
from cotenant.units.share import WHOLE_PPM
from tests.support.node_processes import NodeHarness, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]
LATE = "import cotenant, time\nwhile True:\n    cotenant.request.ended(80_000_000)\n    time.sleep(0.005)\n"
"""A service that misses 20 ms with every request."""


@pytest.fixture
def gpu(node_harness: NodeHarness) -> Iterator[NodeHarness]:
    node_harness.directories.runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
    manage.create(home(node_harness.directories), "v100", 1)
    node_harness.node("--slots", "4")
    yield node_harness
    manage.destroy(home(node_harness.directories))


def adjusted(node_harness: NodeHarness) -> list[OnlineShareProposed]:
    return [turn.event for turn in node_harness.journal() if isinstance(turn.event, OnlineShareProposed)]


def served(node_harness: NodeHarness) -> int:
    tenant_list = node_harness.tenant_list()
    if tenant_list is None:
        return 0
    activity = read_activity(node_harness.directories)
    return sum(one.requests for one in served_so_far(activity, tenant_list).values())


def looked_at(node_harness: NodeHarness) -> dict[str, int]:
    """Return the requests of the service during one interval of `top`; empty if it was stalled meanwhile."""
    shown = node_harness.json("top", "--once")["devices"][0]["tenants"]
    [online] = [one["served"] for one in shown if one["name"] == "web"]
    return dict(online) if online["requests"] else {}


def test_requests_reach_ps_top_and_the_control(gpu: NodeHarness) -> None:
    program = ("--", sys.executable, "-c", LATE)
    gpu.tenant("web", "--gpu", "soft:0", "--online", "--slo", "20ms", *program)
    gpu.tenant("job", "--gpu", "soft:0", "--", sys.executable, "-m", "cotenant_lab.programs.busy", "large")
    until(lambda: served(gpu) >= 20)
    web, job = gpu.json("ps")["tenants"]
    assert (web["name"], web["served"]["slo_ns"], web["served"]["is_reported"]) == ("web", 20_000_000, True)
    assert (web["served"]["over"], web["served"]["within_ppm"]) == (web["served"]["requests"], 0)
    assert job["served"] is None
    assert until(lambda: looked_at(gpu))["within_ppm"] == 0
    assert "ATTAINED" in gpu.run("ps").stdout
    until(lambda: bool(adjusted(gpu)))
    assert all(event.adjustment.gpu == 0 and event.adjustment.detail for event in adjusted(gpu))
    assert gpu.run("set", "web", "--slo", "1s").stdout == "web has latency objective 1s\n"
    assert until(lambda: looked_at(gpu))["within_ppm"] == WHOLE_PPM, "its program, as it runs, judges by what holds now"
