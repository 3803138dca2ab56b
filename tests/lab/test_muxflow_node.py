"""Tests of study `muxflow-node`: evaluation, summaries and targets."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.harness.run import SharingRun
from cotenant.simulate.kernels import RunSettings
from cotenant.softgpu.sim.device import preset
from cotenant.units.instant import MILLISECOND_NS
from cotenant.workload.load import BACK_TO_BACK, TRAINING, Workload
from cotenant_lab.bench.fill.pairs import Pair
from cotenant_lab.study.fikit.cases import synthetic
from cotenant_lab.study.muxflow_node.cases import DAY, HOST_MOST, REQUESTS, NodeCase, at_level, node_cases, services
from cotenant_lab.study.muxflow_node.live import NodeLiveCase, NodeLiveResult, NodeRun, Quotas, live_cases, live_result
from cotenant_lab.study.muxflow_node.report import PROTECTED, report_of
from cotenant_lab.study.muxflow_node.run import (
    NodeResult,
    days_of,
    distribution_of,
    evaluate_node,
    evaluate_nodes,
    simulated_of,
)
from tests.support.measurements import DATA, needs_data

SETTING = RunSettings(device=preset("v100"), seed=3)
LEVELS = (0.10, 0.40)


def service(kernel_us: int = 30, interval_us: int = 30) -> Workload:
    return synthetic("service", kernel_us, interval_us * 1000, BACK_TO_BACK, MILLISECOND_NS)


def case(level: float) -> NodeCase:
    online = at_level(service(), level, 5, requests=40)
    assert online is not None
    offline = synthetic("training", 60, 4000, TRAINING, MILLISECOND_NS)
    return NodeCase(pair=Pair("service + training", "poisson", online, offline), level=level)


@pytest.fixture(scope="module")
def results() -> list[NodeResult]:
    return [evaluate_node(case(level), SETTING) for level in LEVELS]


def test_sharing_increases_use_and_the_gate_protects_the_service(
    results: list[NodeResult],
) -> None:
    for result in results:
        assert result.before.requests == 40
        assert result.before.sm_activity <= result.before.utilization < 1
        for use in result.after.values():
            assert result.before.utilization < use.utilization <= 1
            assert use.sm_activity <= use.utilization
            assert use.requests == result.before.requests
        assert 1 <= result.p99_ratio["cotenant mps"] <= result.p99_ratio["mps"]
        assert 0 < result.metrics.offline_vs_alone["cotenant mps"] <= result.metrics.offline_vs_alone["mps"]
    low, high = results
    assert low.before.utilization < high.before.utilization


def test_number_of_workers_does_not_change_results(results: list[NodeResult]) -> None:
    again = evaluate_nodes([case(level) for level in LEVELS], SETTING, 2, lambda *_: None)
    assert again == simulated_of(results)


def test_day_weights_levels_by_their_duration(results: list[NodeResult]) -> None:
    (day,) = days_of(results)
    low, high = (result.after[PROTECTED].utilization for result in results)
    share = DAY[LEVELS[1]] / (DAY[LEVELS[0]] + DAY[LEVELS[1]])
    assert day.after[PROTECTED]["utilization"] == pytest.approx(low + share * (high - low))
    assert sum(DAY.values()) == pytest.approx(1)


def test_service_reaches_its_level_or_is_omitted() -> None:
    eager = service(kernel_us=30, interval_us=60)
    found = {level: at_level(eager, level, 1) for level in DAY}
    assert [level for level, load in found.items() if load is None] == [0.60]
    for level, load in found.items():
        if load is not None:
            assert load.arrival.rate_per_s * load.device_ns / 1e9 == pytest.approx(level)
            assert load.arrival.rate_per_s * load.host_ns / 1e9 <= HOST_MOST
            assert load.requests == REQUESTS


def test_services_are_short_and_distinct_and_exclude_trainings() -> None:
    offline = synthetic("below", 60, 4000, TRAINING, 1)
    long, same = service(kernel_us=2000), msgspec.structs.replace(service(), name="the same again")
    trains = msgspec.structs.replace(service(kernel_us=31), name="train something")
    loads = [(service(), "eager"), (long, "eager"), (same, "graph"), (trains, "eager"), (service(32), "inflated")]
    assert services([Pair(load.name, family, load, offline) for load, family in loads]) == [service()]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=40))
def test_distribution_is_ordered(values: list[float]) -> None:
    found = distribution_of(values)
    assert min(values) == found.min <= found.median <= found.p90 <= found.max == max(values)


GIB = 1 << 30
LIVE_CASE = NodeLiveCase(
    name="case",
    level=0.4,
    online=case(0.4).pair.online,
    offline=(service(), service()),
    sizes=Quotas(6 * GIB, 4 * GIB, 5 * GIB, 3 * GIB),
)


def act(busy_ns: int, delayed_ns: int = 0, p99_ns: int = 100, *, evicted: int = 1) -> NodeRun:
    run = SharingRun(mode="through", wall_ns=1000, requests=10, latency_p99_ns=p99_ns, online_delayed_ns=delayed_ns,
                  busy_ns=busy_ns, sm_ns=40 * busy_ns)  # fmt: skip
    return NodeRun(
        run=run,
        memory=busy_ns / 1000,
        offline_done_ns=(200, 100),
        evicted=evicted,
        came_back=True,
        health="healthy",
    )


def live_results(delayed_part: float = 0.01, *, evicted: int = 1) -> NodeLiveResult:
    asked_ns = 10 * LIVE_CASE.online.device_ns
    rounds = [(act(100), act(after, round(delayed_part * asked_ns), p99, evicted=evicted))
              for after, p99 in ((400, 110), (500, 900), (600, 120))]  # fmt: skip
    return live_result(LIVE_CASE, rounds, (0.8, 1.0), 80)


def test_live_result_is_the_median_of_its_rounds() -> None:
    found = live_results()
    assert (found.before.utilization, found.after.utilization) == (0.1, 0.5)
    assert (found.before.sm_activity, found.after.sm_activity) == (0.05, 0.25)
    assert (found.memory_before, found.memory_after) == (0.1, 0.5)
    assert found.p99_ratio_own_clock == pytest.approx(1.2)
    assert found.offline_vs_alone == pytest.approx(0.2 / 0.8 + 0.1 / 1.0)
    assert found.delay_ratio == pytest.approx(0.01, rel=1e-3)
    assert (found.rounds, found.evicted, found.came_back) == (3, 3, True)


def test_missed_targets_are_reported_as_missed(results: list[NodeResult]) -> None:
    slow = [msgspec.structs.replace(result, p99_ratio={**result.p99_ratio, PROTECTED: 1.2}) for result in results]
    report = report_of(
        simulated_of([*slow, results[0], results[0], results[0]]), [live_results(0.2)], [], 3, quick=True
    )
    missed = {name for name, met in report.met.items() if not met}
    assert "simulated: online p99 under MPS, max <= +5 %" in missed
    assert "live: online delay by the device's accounting, median <= 5 %" in missed
    assert "live: online delay by the device's accounting, max <= 5 %" in missed
    assert report.simulated is not None
    assert report.simulated.within[PROTECTED] <= 3 / 5
    assert all(report_of(None, [live_results()], [], 3, quick=True).met.values())
    assert not all(report_of(None, [live_results(evicted=0)], [], 3, quick=True).met.values())
    assert report_of(None, [], [], 3, quick=True).met == {}


@needs_data
def test_measured_services_reach_every_level() -> None:
    cases, _ = node_cases(DATA, quick=True)
    assert {one.level for one in cases} == set(DAY)
    acted, missing = live_cases(DATA, quick=False)
    assert ([one.level for one in acted], missing) == (list(DAY), [])
    for one in acted:
        sizes = one.sizes
        assert sizes.service + sizes.first + sizes.second <= 16 * GIB < sum(msgspec.structs.astuple(sizes))
