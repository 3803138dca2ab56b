"""Do the requests of a tenant reach whoever looks, and do late ones have the node give it more of the device?"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from cotenant.apps.show_requests import served_so_far
from cotenant.apps.softgpu import home
from cotenant.domain.event import SharesAdjusted
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.live.softgpu import manage
from tests.e2e.stage import Stage, until

pytestmark = pytest.mark.timeout(240)
LATE = "import cotenant, time\nwhile True:\n    cotenant.request.ended(80_000_000)\n    time.sleep(0.005)\n"
"""A service that misses 20 ms with every request."""


@pytest.fixture
def gpu(stage: Stage) -> Iterator[Stage]:
    stage.places.runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
    manage.create(home(stage.places), "v100", 1)
    stage.node("--slots", "4")
    yield stage
    manage.destroy(home(stage.places))


def adjusted(stage: Stage) -> list[SharesAdjusted]:
    return [turn.event for turn in stage.journal() if isinstance(turn.event, SharesAdjusted)]


def served(stage: Stage) -> int:
    roll = stage.roll()
    return 0 if roll is None else sum(one.requests for one in served_so_far(stage.places.pages, roll).values())


def looked_at(stage: Stage) -> dict[str, int]:
    """What the service did while `top` looked; nothing, if it was stalled just then."""
    shown = stage.json("top", "--once")["devices"][0]["tenants"]
    [online] = [one["served"] for one in shown if one["name"] == "web"]
    return dict(online) if online["requests"] else {}


def test_requests_reach_ps_top_and_the_control(gpu: Stage) -> None:
    program = ("--", sys.executable, "-c", LATE)
    gpu.tenant("web", "--gpu", "soft:0", "--online", "--slo", "20ms", *program)
    gpu.tenant("job", "--gpu", "soft:0", "--", sys.executable, "-m", "cotenant.live.soak.press", "large")
    until(lambda: served(gpu) >= 20)
    web, job = gpu.json("ps")["tenants"]
    assert (web["name"], web["served"]["slo_ns"], web["served"]["is_told"]) == ("web", 20_000_000, True)
    assert (web["served"]["over"], web["served"]["within_ppm"]) == (web["served"]["requests"], 0)
    assert job["served"] is None
    assert until(lambda: looked_at(gpu))["within_ppm"] == 0
    assert "KNOWN" in gpu.run("ps").stdout
    until(lambda: bool(adjusted(gpu)))
    assert all(event.adjustment.gpu == 0 and event.adjustment.detail for event in adjusted(gpu))
    assert gpu.run("set", "web", "--slo", "1s").stdout == "web has an objective of 1s\n"
    assert until(lambda: looked_at(gpu))["within_ppm"] == WHOLE_PPM, "its program, as it runs, judges by what holds now"
