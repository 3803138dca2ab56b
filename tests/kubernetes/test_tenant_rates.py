"""The speed of an offline tenant from the counters of the gate, and what the controller learns from it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.plugin.rates import WINDOW_NS, TenantRates
from cotenant.gate.activity import GateCounts
from cotenant.units.instant import SECOND_NS
from tests.support.kubernetes_cluster import TestCluster

KEY = (3, 7)


def measured(waited_s: float, device_s: float, launches: int = 100) -> int:
    rates = TenantRates()
    before = GateCounts(launches=5, waited_ns=SECOND_NS, device_ns=SECOND_NS)
    assert rates.observe(KEY, before, is_paused=False, now=0) == 0
    after = GateCounts(
        launches=5 + launches,
        waited_ns=SECOND_NS + int(waited_s * SECOND_NS),
        device_ns=SECOND_NS + int(device_s * SECOND_NS),
    )
    assert rates.observe(KEY, after, is_paused=False, now=WINDOW_NS - 1) == 0, "the window is not over"
    return rates.observe(KEY, after, is_paused=False, now=WINDOW_NS)


@pytest.mark.parametrize(
    "waited_s, device_s, rate_ppm",
    [
        (0, 3, 1_000_000),
        (6, 3, 400_000),
        (6, 5, 500_000),  # it waited while its own work ran
        (30, 2, 200_000),  # several threads waited
        (9.99, 0, 50_000),  # 0 would mean that it is unknown
        (0, 12, 1_000_000),  # the expected times of queued work
    ],
)
def test_time_at_the_gate_is_lost_unless_own_work_ran(waited_s: float, device_s: float, rate_ppm: int) -> None:
    assert measured(waited_s, device_s) == rate_ppm


def test_a_tenant_that_launches_nothing_has_no_speed() -> None:
    assert measured(0, 0, launches=0) == 0


@given(st.floats(0, 40), st.floats(0, 40))
def test_a_speed_is_a_share_in_steps_and_falls_with_the_time_at_the_gate(waited_s: float, device_s: float) -> None:
    rate_ppm = measured(waited_s, device_s)
    assert 50_000 <= rate_ppm <= 1_000_000
    assert rate_ppm % 50_000 == 0
    assert measured(waited_s + 1, device_s) <= rate_ppm <= measured(waited_s, device_s + 1)


def test_time_in_which_a_tenant_is_paused_is_not_measured() -> None:
    rates = TenantRates()
    rates.observe(KEY, GateCounts(), is_paused=False, now=0)
    waited = GateCounts(launches=10, waited_ns=8 * SECOND_NS)
    assert rates.observe(KEY, waited, is_paused=True, now=WINDOW_NS) == 0
    resumed = GateCounts(launches=20, waited_ns=8 * SECOND_NS)
    assert rates.observe(KEY, resumed, is_paused=False, now=2 * WINDOW_NS) == 1_000_000


def test_a_tenant_of_the_same_slot_begins_anew() -> None:
    rates = TenantRates()
    rates.observe(KEY, GateCounts(), is_paused=False, now=0)
    rates.keep({(3, 8)})
    counts = GateCounts(launches=10, waited_ns=SECOND_NS)
    assert rates.observe(KEY, counts, is_paused=False, now=WINDOW_NS) == 0


def test_the_controller_learns_from_reported_speeds_and_stores_it() -> None:
    cluster = TestCluster(nodes=1, gpus=1)
    cluster.add_pod(task="training")
    cluster.start_controller()
    cluster.settle(3)
    cluster.report()
    cluster.settle(70)
    stored = cluster.api.objects["configmaps"]["cotenant", names.PREDICTIONS_CONFIG_MAP]
    [(profile, co_runners, times, shift)] = json.loads(stored["data"][names.PREDICTIONS_KEY])
    assert (profile, co_runners, times) == ("training", "", 1)
    assert shift < 0, "40 % of the speed alone is less than predicted for a GPU without online work"
