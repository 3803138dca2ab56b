"""Tests that each baseline has the effect that it is known for."""

import msgspec
import pytest

from cotenant.simulate.kernels import RunSettings
from cotenant.simulate.sharing import Guest, RunSpec, SharingOutcome, TenantResult
from cotenant.softgpu.sim.device import preset
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS
from cotenant.workload.arrivals import draw_arrivals, with_arrivals
from cotenant.workload.kernel import KernelIdentity
from cotenant.workload.load import BACK_TO_BACK, TRAINING, Launch, Workload
from cotenant.workload.rates import StepRate, constant_rate
from cotenant_lab.baselines.modes import share
from cotenant_lab.baselines.percent import knee_of, knee_percentages
from cotenant_lab.baselines.tgs import PERIOD_NS, ProductionCounter, RateLimiter
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


def test_rate_halves_if_production_is_slowed_and_grows_otherwise() -> None:
    production, held = ProductionCounter(), RateLimiter()
    now_ns = 0

    def period(request_ns: int) -> float:
        nonlocal now_ns
        end_ns = now_ns + PERIOD_NS
        while now_ns + 2 * request_ns <= end_ns:
            for launch in range(10):
                at_ns = now_ns + launch * request_ns // 10
                assert production.ask(launch, at_ns, at_ns) == at_ns
            now_ns += request_ns
            production.drained(now_ns)
            now_ns += request_ns  # a pause does not count as slowdown
        now_ns = end_ns
        held.adapt(production.health(now_ns))
        return held.rate_per_s

    doubled = [period(MILLISECOND_NS) for _ in range(5)]
    assert doubled == [200, 400, 800, 1600, 3200]
    backed = [period(2 * MILLISECOND_NS) for _ in range(3)]
    assert backed == [1600, 800, 400]
    recovering = [period(MILLISECOND_NS) for _ in range(20)]
    assert min(recovering) < backed[-1]  # the rate is smoothed: it takes a while to be near again
    steps = [after - before for before, after in zip(recovering[-6:], recovering[-5:], strict=False)]
    assert min(steps) > 0
    assert max(steps) == pytest.approx(min(steps))  # additive from now on


def test_rate_limiter_keeps_its_rate() -> None:
    gate = RateLimiter()
    gate.rate_per_s = 1000.0
    now_ns = passed = 0
    while now_ns < SECOND_NS:
        at_ns = gate.ask(0, now_ns, now_ns)
        passed += at_ns == now_ns
        now_ns = at_ns if at_ns > now_ns else now_ns + 10_000
    assert passed == pytest.approx(1000, abs=15)


@pytest.mark.parametrize("mode", ["tgs", "tgs-mps"])
def test_opportunistic_work_gets_what_production_leaves(mode: str) -> None:
    """A service starts after two seconds: the training is fast before and slow after."""
    load = with_arrivals(SERVICE, draw_arrivals(StepRate(((0, 0.0), (2 * SECOND_NS, 300.0))), 4 * SECOND_NS, 5))
    run = RunSpec(
        guests=(Guest(load=load, online=True, priority=1), BATCH), setting=SETTING, for_ns=4 * SECOND_NS, warm_ns=0
    )
    outcome = share(mode, run)
    assert _done(outcome, 1, 2) > 2 * _done(outcome, 3, 4)
    default = share("mps" if mode == "tgs-mps" else "slices", run)
    assert outcome.guests[0].quantile_ns(0.9) < default.guests[0].quantile_ns(0.9)


def _done(outcome: SharingOutcome, begin_s: int, end_s: int) -> int:
    series = outcome.guests[1].progress_ns
    return series[10 * end_s - 1] - series[10 * begin_s - 1]
