"""Measured windows of a service yield its need, whatever its queue and its neighbours."""

from __future__ import annotations

import random

import pytest

from cotenant.node.model.control import ControlLimits, DeviceWindow, TenantWindow
from cotenant.node.policy.limit.share import MIN_OFFLINE_PERCENT, offline_percent
from cotenant.node.state.share_needs import ShareNeeds
from cotenant.predict.load import Load
from cotenant.predict.share_need import AloneLatency, Objective, need_ppm
from cotenant.predict.usage import TaskUse
from cotenant.units.estimate import Estimate
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS

WINDOW_NS = 100 * MILLISECOND_NS
SLO_NS = 60 * MILLISECOND_NS
SERVICE_NS = 5 * MILLISECOND_NS


def lived(
    needs: ShareNeeds,
    per_second: float,
    windows: int,
    *,
    lost: float = 0.0,
    generation: int = 1,
    use: TaskUse | None = None,
) -> list[Estimate | None]:
    """So many windows of chance arrivals, each request served for its time and held up by a part of that."""
    rng, load, found = random.Random(3), Load(), []
    for number in range(windows):
        begin_ns = number * WINDOW_NS
        came, at_s = 0, rng.expovariate(per_second)
        while at_s < WINDOW_NS / SECOND_NS:
            came, at_s = came + 1, at_s + rng.expovariate(per_second)
        active_ns = round(came * SERVICE_NS * (1 + lost))
        service = TenantWindow(0, generation, True, SLO_NS, came, active_ns=active_ns)
        training = TenantWindow(1, 1, False, lost_ns=round(came * SERVICE_NS * lost))
        window = DeviceWindow(0, begin_ns, begin_ns + WINDOW_NS, (service, training))
        load = load.after(came, begin_ns)
        found.append(needs.update(service, window, load, use))
    return found


@pytest.mark.parametrize("lost", [0.0, 1.5])
def test_it_is_the_need_of_the_service_alone_at_its_rate(lost: float) -> None:
    found = lived(ShareNeeds(ControlLimits()), 50.0, 200, lost=lost)
    expected = need_ppm(
        AloneLatency(SERVICE_NS, 1.25 * SERVICE_NS), SLO_NS, Estimate(50, 50, 50), Objective(least=0.2)
    ).share
    last = [one for one in found[-50:] if one is not None]
    assert len(last) == 50
    assert sum(one.point for one in last) / 50 == pytest.approx(expected.point, rel=0.15)
    assert all(one.low <= one.point <= one.high for one in last)


def test_a_stranger_has_no_need_until_it_was_seen_or_its_profile_speaks() -> None:
    needs = ShareNeeds(ControlLimits())
    found = lived(needs, 50.0, 20)
    assert found[0] is None
    assert found[-1] is not None
    assert lived(needs, 50.0, 1, generation=2) == [None]
    use = TaskUse(duty_ppm=1_000_000, round_ns=SERVICE_NS)
    assert lived(ShareNeeds(ControlLimits()), 50.0, 1, use=use)[0] is not None
    assert lived(ShareNeeds(ControlLimits()), 1e-9, 5, use=use) == [None] * 5, "it does not say how many will come"


def test_more_requests_need_more() -> None:
    calm, busy = (lived(ShareNeeds(ControlLimits()), rate, 100)[-1] for rate in (20.0, 120.0))
    assert calm is not None
    assert busy is not None
    assert calm.point < busy.point


def test_offline_programs_start_with_what_online_leaves() -> None:
    assert offline_percent(350_000, 100_000) == 55
    assert offline_percent(980_000, 100_000) == MIN_OFFLINE_PERCENT
    percents = [offline_percent(online_ppm, 100_000) for online_ppm in range(0, 1_000_001, 10_000)]
    assert percents == sorted(percents, reverse=True)
    assert max(percents) == 90
