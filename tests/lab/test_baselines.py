"""Tests that each baseline has the effect that it is known for."""

import msgspec
import pytest

from cotenant.simulate.kernels import RunSettings
from cotenant.simulate.sharing import Guest, RunSpec, TenantResult
from cotenant.softgpu.sim.device import preset
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS
from cotenant.workload.arrivals import draw_arrivals, with_arrivals
from cotenant.workload.kernel import KernelIdentity
from cotenant.workload.load import BACK_TO_BACK, TRAINING, Launch, Workload
from cotenant.workload.rates import constant_rate
from cotenant_lab.baselines.modes import share
from cotenant_lab.baselines.percent import knee_of, knee_percentages
from cotenant_lab.baselines.tgs import (
    FIRST_BLOCKS,
    UNLIMITED_BLOCKS,
    WINDOW_NS,
    ProductionCounter,
    RateControl,
    RateLimiter,
)
from cotenant_lab.study.baselines.run import TrainingPairCase, evaluate_pair, host_bound
from cotenant_lab.study.fikit.cases import synthetic

SETTING = RunSettings(device=preset("v100"), seed=1)
FOR_NS = 3 * SECOND_NS
SERVICE = synthetic("service", 40, 60_000, BACK_TO_BACK, 0)
BATCH = Guest(load=synthetic("batch", 400, 4_000, TRAINING, 0), online=False, priority=7)


def service(rate_per_s: float) -> Guest:
    return Guest(
        load=with_arrivals(SERVICE, draw_arrivals(constant_rate(rate_per_s), FOR_NS, 2)), online=True, priority=1
    )


def beside(*guests: Guest, for_ns: int = FOR_NS) -> RunSpec:
    return RunSpec(guests=guests, setting=SETTING, for_ns=for_ns, warm_ns=for_ns // 3)


def part(result: TenantResult) -> float:
    """Return the kernel time of a tenant as a fraction of the window."""
    return result.done_ns / (result.end_ns - result.begin_ns)


def narrow(name: str, blocks: int, us: int, launches: int = 20) -> Workload:
    kernel = KernelIdentity(name, (blocks, 1, 1), (1024, 1, 1))
    return Workload(name, (Launch(kernel, us * 1000, 2000, registers=64),) * launches, TRAINING)


def test_exclusive_tenants_do_not_delay_each_other() -> None:
    run = beside(service(200), BATCH)
    outcome = share("exclusive", run)
    assert outcome.gpus == 2
    assert outcome.guests[0].delayed_ns == outcome.guests[1].delayed_ns == 0
    assert part(outcome.guests[1]) > 0.98


def test_mps_priority_helps_online_tenant() -> None:
    run = beside(service(200), BATCH)
    plain, prior = share("mps", run), share("mps-priority", run)
    assert prior.guests[0].quantile_ns(0.99) < plain.guests[0].quantile_ns(0.99) / 2
    assert prior.guests[1].done_ns <= plain.guests[1].done_ns


def test_slices_are_equal_and_a_late_tenant_waits_for_one() -> None:
    run = beside(*(msgspec.structs.replace(BATCH, online=online) for online in (True, False)))
    both = share("slices", run)
    assert part(both.guests[0]) == pytest.approx(0.5, abs=0.02)
    assert part(both.guests[1]) == pytest.approx(0.5, abs=0.02)
    run = beside(service(200), BATCH)
    late_ns = share("slices", run).guests[0].quantile_ns(0.99) - share("exclusive", run).guests[0].quantile_ns(0.99)
    assert late_ns > SETTING.device.slice_ns


def test_percentages_limit_each_tenant_to_its_sms() -> None:
    """A tenant with half of the SMs is half as fast, whatever its neighbours do."""
    wide = Guest(load=narrow("wide", 80, 100), online=False, priority=7)
    run = beside(service(100), wide)
    shared = share("mps-percent", run)
    assert shared.metrics == {"percent 0": 50, "percent 1": 50}
    assert part(shared.guests[1]) == pytest.approx(0.5, abs=0.02)
    # 12 % of the SMs are enough for the service, so that the number of neighbours does not affect it.
    small = Guest(load=narrow("small", 8, 100), online=False, priority=7)
    beside_small = share("mps-percent", beside(service(100), small))
    assert shared.guests[0].ends_ns == beside_small.guests[0].ends_ns
    assert part(beside_small.guests[1]) > 0.95


def test_knee_is_where_more_sms_stop_helping() -> None:
    def online(load: Workload) -> Guest:
        return Guest(load=load, online=True, priority=1)

    small, wide = online(narrow("small", 8, 100)), online(narrow("wide", 80, 100))
    assert knee_of(small, SETTING) == 10
    assert knee_of(wide, SETTING) == 100
    assert knee_percentages([small, BATCH], SETTING) == [10, 90]
    assert knee_percentages([wide, BATCH], SETTING) == [90, 10]
    assert knee_percentages([wide, small, BATCH, BATCH], SETTING) == [81, 8, 5, 5]
    assert knee_percentages([small, small], SETTING) == [10, 10]


def test_grid_limiter_follows_its_target_except_for_small_grids() -> None:
    """Its known weakness: tokens are blocks, and a kernel of few blocks can take as long as one of thousands."""

    def used(load: Workload, tenants: int) -> float:
        idle = Guest(load=with_arrivals(SERVICE, draw_arrivals(constant_rate(0), FOR_NS, 0)), online=True, priority=1)
        guests = (*[idle] * (tenants - 1), Guest(load=load, online=False, priority=7))
        return part(share("grid", beside(*guests, for_ns=2 * FOR_NS)).guests[-1])

    large, small = narrow("large", 8000, 800), narrow("small", 80, 800)
    assert used(large, 1) > 0.9
    assert used(large, 2) == pytest.approx(0.5, abs=0.15)
    assert used(large, 4) == pytest.approx(0.25, abs=0.15)
    assert used(small, 4) > 0.8


def test_rate_counts_blocks_of_finished_requests_and_no_pauses() -> None:
    counter = ProductionCounter([100, 300])
    now_ns = 0
    for _ in range(4):
        assert not counter.rate()  # too few requests so far
        for step in range(2):
            assert counter.ask(step, now_ns, now_ns) == now_ns
        now_ns += 10 * MILLISECOND_NS
        counter.drained(now_ns)
        now_ns += 30 * MILLISECOND_NS
    assert counter.was_active
    assert counter.rate() == pytest.approx(400 * 5)  # 400 blocks in 10 ms, per window of 50 ms
    assert not counter.was_active


def follow(control: RateControl, rates: list[float]) -> list[int]:
    """Return the limit after each period."""
    limits = []
    for rate in rates:
        control.observe(rate, was_active=True)
        limits.append(control.limit)
    return limits


def test_offline_rate_grows_while_production_keeps_its_rate() -> None:
    control = RateControl()
    assert follow(control, [1000.0] * 4) == [0] * 4  # production is measured first
    limits = follow(control, [1000.0] * 5)
    assert limits[0] == FIRST_BLOCKS
    assert limits[4] == pytest.approx(FIRST_BLOCKS * 1.5**4, rel=0.01)


def test_offline_rate_backs_off_and_then_grows_by_steps() -> None:
    control = RateControl()
    follow(control, [1000.0] * 8)
    before = control.limit
    assert follow(control, [950.0])[0] == pytest.approx(before / 1.5, rel=0.01)
    shrinking = follow(control, [950.0] * 3)
    assert shrinking[1] - shrinking[2] == max(round(0.08 * shrinking[1]), 1000)
    growing = follow(control, [1000.0] * 3)
    assert growing[2] - growing[1] == growing[1] - growing[0] == 1000
    assert follow(control, [900.0])[0] < growing[2] / 10  # far from its rate


def test_offline_work_is_not_limited_without_production() -> None:
    control = RateControl()
    follow(control, [1000.0] * 8)
    for _ in range(3):
        control.observe(0.0, was_active=False)
    assert control.limit == UNLIMITED_BLOCKS
    assert follow(control, [0.0] * 3)[-1] == FIRST_BLOCKS


def test_rate_limiter_keeps_its_number_of_blocks_per_window() -> None:
    gate = RateLimiter([60])
    gate.limit = 600
    now_ns = passed = 0
    while now_ns < SECOND_NS:
        at_ns = gate.ask(0, now_ns, now_ns)
        passed += at_ns == now_ns
        now_ns = at_ns if at_ns > now_ns else now_ns + 10_000
    assert passed == 11 * SECOND_NS // WINDOW_NS  # the launch that exceeds the limit still passes


def test_tgs_leaves_offline_work_what_a_host_bound_training_does_not_use() -> None:
    """What its paper reports: 0.7 to 0.9 of the speed alone next to a production training that is hardly affected."""
    idle = host_bound(synthetic("production", 100, 0, TRAINING, 0), 0.2)
    case = TrainingPairCase(name="pair", duty=0.2, production=idle, opportunistic=BATCH.load)
    production, opportunistic = evaluate_pair(case, SETTING, for_ns=8 * SECOND_NS).speeds["tgs"]
    assert production > 0.97
    assert 0.6 < opportunistic < 0.9
