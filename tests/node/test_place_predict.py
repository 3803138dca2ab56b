"""The predict policy chooses the device that meets the objectives with the most goodput, in any order of tenants."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.gate.grant import Kind
from cotenant.gate.rules import GatePolicy, GateRules
from cotenant.node.model.admission import Reject
from cotenant.node.model.event import NodeSettings
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.tenant import TenantSpec
from cotenant.node.policy.place.predict import score
from cotenant.node.state.capacity import Capacity
from cotenant.predict.co_location import forecast_sharing, required_share_ppm
from cotenant.predict.sharing_forecast import Sharing
from cotenant.predict.usage import TaskUse
from cotenant.units.instant import MILLISECOND_NS
from cotenant.units.share import WHOLE_PPM
from tests.support.strategies import task_uses

FULL = ((WHOLE_PPM, WHOLE_PPM),)
HOG = TaskUse(990_000, FULL, 0, 500_000, 900_000, 100 * MILLISECOND_NS, 99 * MILLISECOND_NS, WHOLE_PPM)
IDLER = TaskUse(
    200_000, ((300_000, WHOLE_PPM),), 0, 50_000, 90_000, 100 * MILLISECOND_NS, 20 * MILLISECOND_NS, WHOLE_PPM
)
BUSY_WEB = TaskUse(900_000, FULL, 0, 50_000, 90_000, 10 * MILLISECOND_NS, 9 * MILLISECOND_NS, 600_000)
CALM_WEB = TaskUse(500_000, FULL, 0, 50_000, 90_000, 10 * MILLISECOND_NS, 5 * MILLISECOND_NS, 50_000)
BARS: dict[int, Reject] = {}


def training(use: TaskUse | None) -> TenantSpec:
    return TenantSpec(Kind.OFFLINE, 7, use=use)


def service(use: TaskUse | None, slo_ms: int = 0) -> TenantSpec:
    return TenantSpec(Kind.ONLINE, 2, slo_ns=slo_ms * MILLISECOND_NS, use=use)


def capacity_with(*devices: list[TenantSpec]) -> Capacity:
    capacity = Capacity(NodeSettings(9, 0, place="predict", gpus=(Gpu("x", 100),) * len(devices)), (), GateRules())
    for gpu, tenants in enumerate(devices):
        for tenant in tenants:
            capacity.occupy((gpu,), tenant, 1)
    return capacity


# name: the new tenant, the tenants of each device, the chosen device
CHOICES = {
    "all alike: the lowest": (training(HOG), ([], []), 0),
    "an empty one": (training(HOG), ([training(IDLER)], []), 1),
    "with the tenant that leaves most": (training(HOG), ([training(HOG)], [training(IDLER)]), 1),
    "without profiles: the emptier": (training(None), ([training(None)], []), 1),
    "with the calmer service": (training(HOG), ([service(BUSY_WEB, 100)], [service(CALM_WEB, 100)]), 1),
    "with the service that may be slowed more": (
        training(HOG),
        ([service(CALM_WEB, 13)], [service(CALM_WEB, 90)]),
        1,
    ),
    "two services that need a whole device are separated": (
        service(BUSY_WEB, 60),
        ([service(BUSY_WEB, 60)], [training(HOG)]),
        1,
    ),
    "a service without a profile gets its own device": (
        service(None, 60),
        ([service(CALM_WEB, 60)], [training(HOG)]),
        1,
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_predict_chooses_the_expected_device(name: str) -> None:
    newcomer, devices, expected = CHOICES[name]
    choice = capacity_with(*devices).find(newcomer, BARS)
    assert not isinstance(choice, Reject)
    assert choice.gpu == expected
    assert choice.why.startswith(f"GPU {expected}: goodput +")


kinds = st.sampled_from(Kind)
slos = st.sampled_from([0, 1, MILLISECOND_NS, 20 * MILLISECOND_NS, 10**12])


@st.composite
def tenants(draw: st.DrawFn) -> TenantSpec:
    kind = draw(kinds)
    slo_ns = draw(slos) if kind is Kind.ONLINE else 0
    return TenantSpec(kind, 5, slo_ns=slo_ns, use=draw(st.none() | task_uses))


sharings = st.builds(Sharing, st.sampled_from(GatePolicy), st.integers(10_000, WHOLE_PPM), st.booleans())


@given(st.lists(tenants(), max_size=5), sharings, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_forecast_is_bounded_and_independent_of_the_order(
    co_tenants: list[TenantSpec], sharing: Sharing, shuffle: random.Random
) -> None:
    forecast = forecast_sharing(co_tenants, sharing)
    online = sum(spec.kind is Kind.ONLINE for spec in co_tenants)
    assert 0 <= forecast.online <= online + 1e-9
    assert 0 <= forecast.offline <= len(co_tenants) - online + 1e-9
    shuffled = list(co_tenants)
    shuffle.shuffle(shuffled)
    assert forecast_sharing(shuffled, sharing) == forecast


@given(tenants(), st.lists(tenants(), max_size=4), sharings)
@settings(deadline=None)
def test_no_tenant_has_more_goodput_with_others_than_alone(
    newcomer: TenantSpec, co_tenants: list[TenantSpec], sharing: Sharing
) -> None:
    alone = forecast_sharing([newcomer], sharing)
    before, after = forecast_sharing(co_tenants, sharing), forecast_sharing([*co_tenants, newcomer], sharing)
    rounding = 2e-6 * (len(co_tenants) + 1)  # the parts of the device are whole ppm, rounded once for each tenant
    assert after.goodput - before.goodput <= alone.goodput + rounding
    assert after.needs_ppm - before.needs_ppm >= (alone.needs_ppm if sharing.policy is not GatePolicy.OPEN else 0)


@given(st.lists(st.lists(tenants(), max_size=3), min_size=1, max_size=4), tenants())
@settings(deadline=None)
def test_chosen_device_has_the_least_cost(devices: list[list[TenantSpec]], newcomer: TenantSpec) -> None:
    capacity = capacity_with(*devices)
    choice = capacity.find(newcomer, BARS)
    assert not isinstance(choice, Reject)
    sharing = Sharing(kept_ppm=980_392)
    costs = [
        score(forecast_sharing(co_tenants, sharing), forecast_sharing([*co_tenants, newcomer], sharing)).cost
        for co_tenants in devices
    ]
    assert costs[choice.gpu] == min(costs)
    for tenant in devices[choice.gpu]:  # removing and adding a tenant does not change the choice
        capacity.occupy(choice.gpus, tenant, -1)
        capacity.occupy(choice.gpus, tenant, 1)
    assert capacity.find(newcomer, BARS) == choice


def test_unreachable_objective_needs_more_than_the_whole_device() -> None:
    assert required_share_ppm(service(BUSY_WEB, 1), Sharing()) == 2 * WHOLE_PPM
    assert required_share_ppm(service(None, 50), Sharing()) == WHOLE_PPM
    assert required_share_ppm(service(CALM_WEB), Sharing()) is None
    loose, tight = (required_share_ppm(service(CALM_WEB, slo_ms), Sharing()) for slo_ms in (90, 30))
    assert loose is not None
    assert tight is not None
    assert 0 < loose < tight < WHOLE_PPM
