"""Tests of several tenants on a simulated device, in every sharing mode."""

import bisect
from array import array

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.gate.launch_estimate import LaunchEstimate
from cotenant.gate.request_buckets import bucket_of
from cotenant.gate.rules import GatePolicy, GateRules
from cotenant.gate.tenant_gate import TenantGate
from cotenant.gate.tenant_table import read_tenant_table
from cotenant.node.model.control import AdjustCause, Adjustment, ControlLimits, DeviceWindow
from cotenant.node.policy.limit.share import delay_of
from cotenant.simulate.kernels import RunSettings, play_alone
from cotenant.simulate.sharing import (
    Guest,
    RunSpec,
    SharingOutcome,
    TenantResult,
    clients_of,
    simulate_run,
    simulation_of,
)
from cotenant.simulate.steering import Steering, cotenant, steered
from cotenant.softgpu.sim.device import preset
from cotenant.softgpu.sim.host import Client, Costs, OpenGate
from cotenant.softgpu.sim.kernels import DeviceSimulation
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS
from cotenant.workload.arrivals import draw_arrivals, with_arrivals
from cotenant.workload.kernel import KernelIdentity
from cotenant.workload.load import BACK_TO_BACK, TRAINING, Launch, Workload, at_instants
from cotenant.workload.rates import bursty_rate, constant_rate
from cotenant_lab.baselines.modes import MODES, share
from cotenant_lab.study.fikit.cases import synthetic
from tests.support.effort import examples

SETTING = RunSettings(device=preset("v100"), seed=3)
FOR_NS = SECOND_NS
SERVICE = synthetic("service", 40, 60_000, BACK_TO_BACK, 0)
BATCH = synthetic("batch", 400, 4_000, TRAINING, 0)


def guests(rate_per_s: float = 250, slo_ns: int = 0, services: int = 1) -> tuple[Guest, ...]:
    online = (
        Guest(
            load=with_arrivals(
                SERVICE, draw_arrivals(bursty_rate(rate_per_s, 4, 60_000_000, 20_000_000), FOR_NS, seed)
            ),
            online=True,
            priority=1,
            slo_ns=slo_ns,
        )
        for seed in range(services)
    )
    return (*online, Guest(load=BATCH, online=False, priority=7))


def a_run(*, slo_ns: int = 0, services: int = 1, rate_per_s: float = 250, rules: GateRules | None = None) -> RunSpec:
    setting = msgspec.structs.replace(SETTING, rules=rules or GateRules())
    return RunSpec(guests=guests(rate_per_s, slo_ns, services), setting=setting, for_ns=FOR_NS, warm_ns=FOR_NS // 10)


@pytest.mark.parametrize("mode", MODES)
def test_every_request_is_accounted_for_in_every_mode(mode: str) -> None:
    """Run two services and a training: every due request has ended or is in progress, and ended after it was due."""
    run = a_run(services=2, slo_ns=8 * MILLISECOND_NS, rate_per_s=120)
    outcome = share(mode, run)
    assert outcome.mode == mode
    assert outcome.gpus == (3 if mode == "exclusive" else 1)
    for guest, result in zip(run.guests[:2], outcome.guests, strict=False):
        assert tuple(result.dues_ns) == guest.load.arrival.instants_ns  # the same in every way
        assert 0 < len(result.ends_ns) <= len(result.dues_ns)
        assert list(result.ends_ns) == sorted(result.ends_ns)
        assert all(end > due for due, end in zip(result.dues_ns, result.ends_ns, strict=False))
        within, known = result.count_within(8 * MILLISECOND_NS)
        due = len(result.dues_ns) - bisect.bisect_left(result.dues_ns, run.warm_ns)
        waiting = sum(FOR_NS - at <= 8 * MILLISECOND_NS for at in result.dues_ns[len(result.ends_ns) :])
        assert within <= known == due - waiting
    batch = outcome.guests[2]
    assert not batch.dues_ns
    assert len(batch.progress_ns) == FOR_NS // run.sample_ns
    assert list(batch.progress_ns) == sorted(batch.progress_ns)
    assert 0 < batch.done_ns <= FOR_NS - run.warm_ns + 400_000
    assert outcome.busy_ns <= outcome.gpus * (FOR_NS - run.warm_ns)


@st.composite
def services(draw: st.DrawFn) -> Workload:
    launches = tuple(
        Launch(
            KernelIdentity(
                f"k{place}", (draw(st.integers(1, 400)), 1, 1), (draw(st.sampled_from([64, 512, 1024])), 1, 1)
            ),
            draw(st.integers(1, 300)) * 1000,
            draw(st.integers(0, 80)) * 1000,
            registers=32,
        )
        for place in range(draw(st.integers(1, 4)))
    )
    is_graph = draw(st.booleans())
    if draw(st.booleans()):
        return Workload("synthetic", launches, TRAINING, graph=is_graph)
    instants = draw(st.lists(st.integers(0, 40 * MILLISECOND_NS), max_size=30))
    return Workload("synthetic", launches, at_instants(instants), len(instants), is_graph)


@given(st.lists(services(), min_size=1, max_size=3), st.sampled_from(sorted(MODES)), st.integers(0, 40))
@settings(max_examples=examples(30, 600))
def test_sharing_loses_no_work_and_no_tenant_is_faster_than_alone(
    loads: list[Workload], mode: str, slo_ms: int
) -> None:
    costs = Costs(jitter_ppm=0)
    setting = RunSettings(device=SETTING.device, costs=costs)
    here = tuple(
        Guest(
            load=load,
            online=load.arrival.kind != "training",
            priority=1 if load.arrival.kind != "training" else 7,
            slo_ns=0 if load.arrival.kind == "training" else slo_ms * MILLISECOND_NS,
        )
        for load in loads
    )
    outcome = share(mode, RunSpec(guests=here, setting=setting, for_ns=50 * MILLISECOND_NS))
    for guest, result in zip(here, outcome.guests, strict=True):
        launches = guest.load.launches
        least_ns = costs.call_ns + costs.sync_ns + max(launch.device_ns for launch in launches)
        if guest.online:
            assert tuple(result.dues_ns) == guest.load.arrival.instants_ns
            assert len(result.ends_ns) <= len(result.dues_ns)
            # Durations are rounded to whole waves of blocks.
            assert all(latency_ns >= least_ns * 0.99 - 400 for latency_ns in result.latencies_ns())
            assert result.done_ns >= len(result.ends_ns) * guest.load.kernels_ns
        else:
            assert not result.dues_ns


@pytest.mark.parametrize("mode", ["cotenant", "cotenant-slice", "grid", "tgs-mps"])
def test_run_is_a_function_of_its_seed(mode: str) -> None:
    run = a_run(slo_ns=8 * MILLISECOND_NS)
    again = share(mode, run)
    assert share(mode, run) == again
    other = msgspec.structs.replace(run, setting=msgspec.structs.replace(run.setting, seed=4))
    assert share(mode, other).guests[0].ends_ns != again.guests[0].ends_ns


def test_open_gate_changes_nothing() -> None:
    """With open gates, the product's mode equals MPS with client priorities, to the nanosecond."""
    run = a_run(rules=GateRules(policy=GatePolicy.OPEN), slo_ns=8 * MILLISECOND_NS)
    limits = ControlLimits(adjust="off")
    opened = steered("mps-priority", run, limits, sliced=False)
    assert opened == share("mps-priority", run)
    assert steered("slices", run, limits, sliced=True) == share("slices", run)
    assert share("mps", run) != opened  # only with the priority taken away it would be default MPS


def test_tenant_alone_runs_as_without_harness() -> None:
    run = a_run()
    alone = play_alone(run.guests[0].load, msgspec.structs.replace(run.setting, warm=0))
    assert tuple(share("exclusive", run).guests[0].latencies_ns(0)) == alone.clients[0].latencies_ns


def test_ticks_occur_at_their_instants_after_earlier_events() -> None:
    load = synthetic("one", 100, 0, TRAINING, 0)
    costs = Costs(call_ns=0, sync_ns=0, jitter_ppm=0)
    world = DeviceSimulation(SETTING.device, [Client(load, 0)], [OpenGate()], costs, 0)
    seen: list[tuple[str, int, int]] = []
    world.every(1_000_000, lambda now_ns: seen.append(("a", now_ns, world.done_ns()[0])))
    world.every(500_000, lambda now_ns: seen.append(("b", now_ns, world.done_ns()[0])))
    world.play_for(2_000_000, 700_000)
    order = [("b", 500_000), ("a", 1_000_000), ("b", 1_000_000), ("b", 1_500_000), ("a", 2_000_000), ("b", 2_000_000)]
    assert [(name, at_ns) for name, at_ns, _ in seen] == order
    assert all(done_ns == at_ns for _, at_ns, done_ns in seen)  # kernels of 100 us, back to back


def test_queued_requests_count_from_their_due_instant() -> None:
    load = synthetic("one", 100, 0, BACK_TO_BACK, 0)
    service = with_arrivals(load, draw_arrivals(constant_rate(2000), SECOND_NS // 100, 0))  # 2.5 ms each: far too many
    run = RunSpec(guests=(Guest(load=service, online=True, priority=1),), setting=SETTING, for_ns=SECOND_NS)
    result = share("mps", run).guests[0]
    assert len(result.ends_ns) == len(service.arrival.instants_ns) > 10
    first = result.dues_ns[0]
    last_ns = result.latencies_ns()[-1]
    assert last_ns > 2_500_000 * (len(result.ends_ns) - 1) - (result.dues_ns[-1] - first)


def _lived(dues: list[int], ends: list[int]) -> TenantResult:
    return TenantResult(
        begin_ns=100,
        end_ns=1000,
        dues_ns=array("q", dues),
        ends_ns=array("q", ends),
        done_ns=0,
        progress_ns=array("q"),
        delayed_ns=0,
        waited_ns=0,
    )


def test_service_time_is_without_the_wait_for_requests_before() -> None:
    """Two requests are due at once: the second waits for the first and then takes as long."""
    load = with_arrivals(SERVICE, at_instants([0, 0, SECOND_NS // 2]))
    run = RunSpec(guests=(Guest(load=load, online=True, priority=1),), setting=SETTING, for_ns=FOR_NS)
    result = share("exclusive", run).guests[0]
    first, second, third = result.services_ns()
    assert second == pytest.approx(first, rel=0.05)
    assert third == pytest.approx(first, rel=0.05)
    assert result.latencies_ns()[1] == pytest.approx(2 * first, rel=0.05)
    assert result.is_bounded()


def test_growing_queue_is_not_bounded() -> None:
    load = with_arrivals(SERVICE, draw_arrivals(constant_rate(2000), FOR_NS, 2))
    run = RunSpec(guests=(Guest(load=load, online=True, priority=1),), setting=SETTING, for_ns=FOR_NS)
    assert not share("exclusive", run).guests[0].is_bounded()


def test_kernels_of_a_request_depend_on_its_data() -> None:
    costs = Costs(jitter_ppm=0, data_spread_ppm=100_000)
    load = msgspec.structs.replace(synthetic("dense", 40, 4_000, BACK_TO_BACK, 0), requests=200)
    plain = play_alone(load, msgspec.structs.replace(SETTING, costs=Costs(jitter_ppm=0)))
    varied = play_alone(load, msgspec.structs.replace(SETTING, costs=costs))
    assert len(set(plain.clients[0].latencies_ns)) == 1
    assert len(set(varied.clients[0].latencies_ns)) > 100
    assert varied.clients[0].done_ns == plain.clients[0].done_ns  # by durations alone
    assert varied.busy_ns == pytest.approx(plain.busy_ns, rel=0.03)


def test_waiting_longer_than_the_objective_misses_it() -> None:
    result = _lived([50, 100, 200, 300, 950], [90, 150, 500])
    assert result.latencies_ns() == [50, 300]
    assert result.count_within(100) == (1, 3)  # 200 was late, 300 waits since 700, of 950 nothing is known
    assert result.attainment(100) == pytest.approx(1 / 3)
    assert result.count_within(1000) == (2, 2)
    assert result.quantile_ns(1.0) == 700
    assert result.quantile_ns(0.5) == 50
    assert result.attainment(10, 600, 900) == 1.0


# ---- the controller -------------------------------------------------------------------------------------------------


def _first_late_ns(outcome: SharingOutcome, slo_ns: int) -> int:
    result = outcome.guests[0]
    return next(end for due, end in zip(result.dues_ns, result.ends_ns, strict=False) if end - due > slo_ns)


def test_controller_acts_within_a_period_of_a_violation() -> None:
    limits = ControlLimits(adjust="aimd", period_ns=20 * MILLISECOND_NS)
    slo_ns = 2_500_000
    outcome = steered("cotenant", a_run(slo_ns=slo_ns), limits, sliced=False)
    late_ns = _first_late_ns(outcome, slo_ns)
    before = [turn for turn in outcome.turns if turn.at_ns <= late_ns]
    after = next(turn for turn in outcome.turns if turn.at_ns > late_ns)
    assert before
    assert after.cause == AdjustCause.VIOLATED.value
    assert after.at_ns - late_ns <= limits.period_ns
    assert after.online_ppm > before[-1].online_ppm


def test_adjustment_is_in_the_tenant_table_at_once() -> None:
    """With a loose objective the online share decreases and the training becomes faster."""
    limits = ControlLimits(adjust="aimd", period_ns=10 * MILLISECOND_NS)
    run = a_run(slo_ns=SECOND_NS)
    steering = Steering(run, limits, sliced=False)
    assert read_tenant_table(steering.memory).delay_ppm == run.setting.rules.delay_ppm
    passage = TenantGate(steering.memory, (0, 1), [LaunchEstimate(1000, 1000)], [0], SECOND_NS)
    for period in range(1, 5):
        passage.served(1, period)
        steering.on_period(period * limits.period_ns)
        assert len(steering.turns) == period  # the first snapshot only begins the window
        if steering.turns:
            assert read_tenant_table(steering.memory).delay_ppm == delay_of(steering.turns[-1].online_ppm)
    free, held = steered("c", run, limits, sliced=False), steered("c", run, ControlLimits(adjust="off"), sliced=False)
    assert free.guests[1].done_ns > 1.1 * held.guests[1].done_ns
    assert not held.turns


@pytest.mark.parametrize("sliced", [False, True])
def test_pages_count_every_request_by_its_exact_latency(sliced: bool) -> None:
    run = a_run(slo_ns=2_000_000)
    steering = Steering(run, ControlLimits(adjust="off"), sliced=sliced)
    result = simulate_run("c", run, simulation_of(run, clients_of(run, sliced=sliced), steering.gates())).guests[0]
    latencies = result.latencies_ns(0)
    assert len(latencies) > 200
    page = steering.page(0)
    assert page["requests_ended"] == len(latencies)
    assert page["requests_sum_ns"] == sum(latencies)
    assert page["requests_over"] == sum(latency > 2_000_000 for latency in latencies)
    buckets = page["request_buckets"]
    assert isinstance(buckets, list)
    assert buckets == [[bucket_of(latency) for latency in latencies].count(bucket) for bucket in range(len(buckets))]


def test_windows_add_up_to_the_totals() -> None:
    run, windows = a_run(slo_ns=2_000_000), list[DeviceWindow]()
    # In time slices: under MPS, launches that are limited to a part of the SMs count for longer than their kernels.
    result, batch = steered("c", run, ControlLimits(adjust="off"), sliced=True, watch=windows.append).guests
    assert [window.end_ns for window in windows] == list(range(0, FOR_NS + 1, 100 * MILLISECOND_NS))[1:]
    first_ns = windows[0].end_ns  # a tenant without an earlier snapshot begins its window then
    assert sum(window.tenants[0].requests for window in windows) == sum(end > first_ns for end in result.ends_ns)
    passed_ns = sum(window.tenants[1].device_ns for window in windows)
    done_ns = batch.progress_ns[-1] - batch.progress_ns[0]
    assert done_ns > 0
    assert abs(passed_ns - done_ns) <= 2 * BATCH.launches[0].device_ns  # at either end one may be under way


def test_shares_of_equal_tenants_can_change_during_a_run() -> None:
    """Limits are switched on and off again during the run, and no tenant stalls."""
    run = a_run(slo_ns=20 * MILLISECOND_NS, services=2, rate_per_s=100)
    steering = Steering(run, ControlLimits(adjust="off"), sliced=False)
    world = simulation_of(run, clients_of(run, sliced=False), steering.gates())

    def change(now_ns: int) -> None:
        shares = ((0, 500_000), (1, 500_000)) if now_ns // (50 * MILLISECOND_NS) % 2 else ()
        steering.adjust(Adjustment(0, 900_000, AdjustCause.NEAR_OBJECTIVE, shares=shares), now_ns)

    world.every(50 * MILLISECOND_NS, change)
    outcome = simulate_run("c", run, world)
    assert [turn.shares for turn in steering.turns][:3] == [
        ((0, 500_000), (1, 500_000)),
        (),
        ((0, 500_000), (1, 500_000)),
    ]
    for index, result in enumerate(outcome.guests[:2]):
        assert result.attainment(20 * MILLISECOND_NS) == 1.0
        page = steering.page(index)
        submitted, confirmed = page["submitted"], page["confirmed"]
        assert isinstance(submitted, int)
        assert isinstance(confirmed, int)
        assert 0 < submitted - len(SERVICE.launches) <= confirmed <= submitted  # the last request may be under way
        assert page["stuck"] == 0


def test_equal_tenants_keep_their_objectives() -> None:
    run = a_run(slo_ns=20 * MILLISECOND_NS, services=2, rate_per_s=100)
    kept = [result.attainment(20 * MILLISECOND_NS) for result in share("exclusive", run).guests[:2]]
    assert kept == [1.0, 1.0]
    assert min(result.attainment(20 * MILLISECOND_NS) for result in cotenant(run).guests[:2]) >= 0.99
