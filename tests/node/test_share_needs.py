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


def simulate(
    needs: ShareNeeds,
    per_second: float,
    windows: int,
    *,
    delay: float = 0.0,
    generation: int = 1,
    use: TaskUse | None = None,
) -> list[Estimate | None]:
    """Return the estimates for a service with random arrivals, whose requests are delayed by a part of their time."""
    rng, load, estimates = random.Random(3), Load(), []
    for number in range(windows):
        begin_ns = number * WINDOW_NS
        requests, at_s = 0, rng.expovariate(per_second)
        while at_s < WINDOW_NS / SECOND_NS:
            requests, at_s = requests + 1, at_s + rng.expovariate(per_second)
        active_ns = round(requests * SERVICE_NS * (1 + delay))
        service = TenantWindow(0, generation, True, SLO_NS, requests, active_ns=active_ns)
        training = TenantWindow(1, 1, False, lost_ns=round(requests * SERVICE_NS * delay))
        window = DeviceWindow(0, begin_ns, begin_ns + WINDOW_NS, (service, training))
        load = load.after(requests, begin_ns)
        estimates.append(needs.update(service, window, load, use))
    return estimates


@pytest.mark.parametrize("delay", [0.0, 1.5])
def test_need_does_not_depend_on_the_delay_by_other_tenants(delay: float) -> None:
    estimates = simulate(ShareNeeds(ControlLimits()), 50.0, 200, delay=delay)
    expected = need_ppm(
        AloneLatency(SERVICE_NS, 1.25 * SERVICE_NS), SLO_NS, Estimate(50, 50, 50), Objective(least=0.2)
    ).share
    last = [estimate for estimate in estimates[-50:] if estimate is not None]
    assert len(last) == 50
    assert sum(estimate.point for estimate in last) / 50 == pytest.approx(expected.point, rel=0.15)
    assert all(estimate.low <= estimate.point <= estimate.high for estimate in last)


def test_need_is_unknown_without_measurements_or_a_profile() -> None:
    needs = ShareNeeds(ControlLimits())
    estimates = simulate(needs, 50.0, 20)
    assert estimates[0] is None
    assert estimates[-1] is not None
    assert simulate(needs, 50.0, 1, generation=2) == [None]
    use = TaskUse(duty_ppm=1_000_000, round_ns=SERVICE_NS)
    assert simulate(ShareNeeds(ControlLimits()), 50.0, 1, use=use)[0] is not None
    assert simulate(ShareNeeds(ControlLimits()), 1e-9, 5, use=use) == [None] * 5, (
        "a profile does not contain the request rate"
    )


def test_higher_rate_has_a_larger_need() -> None:
    calm, busy = (simulate(ShareNeeds(ControlLimits()), rate, 100)[-1] for rate in (20.0, 120.0))
    assert calm is not None
    assert busy is not None
    assert calm.point < busy.point


def test_offline_programs_get_the_sms_that_the_online_share_leaves() -> None:
    assert offline_percent(350_000, 100_000) == 55
    assert offline_percent(980_000, 100_000) == MIN_OFFLINE_PERCENT
    percents = [offline_percent(online_ppm, 100_000) for online_ppm in range(0, 1_000_001, 10_000)]
    assert percents == sorted(percents, reverse=True)
    assert max(percents) == 90
