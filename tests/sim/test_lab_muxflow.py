"""Does the lab of one node count as it says, and does it own up to what it misses?"""

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.domain.instant import MILLISECOND_NS
from cotenant.domain.load import BACK_TO_BACK, TRAINING, Load
from cotenant.experiment.fill.pairs import Pair
from cotenant.experiment.fill.scene import Scene
from cotenant.experiment.kernels import Setting
from cotenant.experiment.lab.fikit_cases import made_up
from cotenant.experiment.lab.muxflow import Judged, days_of, distribution_of, judge_node, judge_nodes, simulated_of
from cotenant.experiment.lab.muxflow_cases import DAY, HOST_MOST, REQUESTS, NodeCase, at_level, node_cases, services
from cotenant.experiment.lab.muxflow_live import Act, LiveCase, Sizes, Told, live_cases, told_of
from cotenant.experiment.lab.muxflow_report import PROTECTED, report_of
from cotenant.sim.device import preset

SETTING = Setting(device=preset("v100"), seed=3)
DATA = Path(os.environ.get("COTENANT_DATA", "") or "../shared/data")
LEVELS = (0.10, 0.40)


def service(kernel_us: int = 30, interval_us: int = 30) -> Load:
    return made_up("service", kernel_us, interval_us * 1000, BACK_TO_BACK, MILLISECOND_NS)


def case(level: float) -> NodeCase:
    online = at_level(service(), level, 5, requests=40)
    assert online is not None
    offline = made_up("training", 60, 4000, TRAINING, MILLISECOND_NS)
    return NodeCase(pair=Pair("service + training", "poisson", online, offline), level=level)


@pytest.fixture(scope="module")
def judged() -> list[Judged]:
    return [judge_node(case(level), SETTING) for level in LEVELS]


def test_sharing_uses_more_of_the_device_and_the_gate_keeps_the_service_close_to_alone(judged: list[Judged]) -> None:
    for one in judged:
        assert one.before.requests == 40
        assert one.before.sm_activity <= one.before.utilization < 1
        for use in one.after.values():
            assert one.before.utilization < use.utilization <= 1
            assert use.sm_activity <= use.utilization
            assert use.requests == one.before.requests
        assert 1 <= one.p99_ratio["cotenant mps"] <= one.p99_ratio["mps"]
        assert 0 < one.figures.offline_vs_alone["cotenant mps"] <= one.figures.offline_vs_alone["mps"]
    low, high = judged
    assert low.before.utilization < high.before.utilization


def test_the_number_of_workers_changes_nothing(judged: list[Judged]) -> None:
    again = judge_nodes([case(level) for level in LEVELS], SETTING, 2, lambda *_: None)
    assert again == simulated_of(judged)


def test_a_day_is_its_levels_in_their_proportions(judged: list[Judged]) -> None:
    (day,) = days_of(judged)
    low, high = (one.after[PROTECTED].utilization for one in judged)
    share = DAY[LEVELS[1]] / (DAY[LEVELS[0]] + DAY[LEVELS[1]])
    assert day.after[PROTECTED]["utilization"] == pytest.approx(low + share * (high - low))
    assert sum(DAY.values()) == pytest.approx(1)


def test_a_service_asks_for_its_level_or_is_left_out_there() -> None:
    eager = service(kernel_us=30, interval_us=60)
    found = {level: at_level(eager, level, 1) for level in DAY}
    assert [level for level, load in found.items() if load is None] == [0.60]
    for level, load in found.items():
        if load is not None:
            assert load.arrival.rate_per_s * load.device_ns / 1e9 == pytest.approx(level)
            assert load.arrival.rate_per_s * load.host_ns / 1e9 <= HOST_MOST
            assert load.requests == REQUESTS


def test_services_are_short_distinct_and_no_trainings() -> None:
    offline = made_up("below", 60, 4000, TRAINING, 1)
    long, same = service(kernel_us=2000), msgspec.structs.replace(service(), name="the same again")
    trains = msgspec.structs.replace(service(kernel_us=31), name="train something")
    loads = [(service(), "eager"), (long, "eager"), (same, "graph"), (trains, "eager"), (service(32), "inflated")]
    assert services([Pair(load.name, family, load, offline) for load, family in loads]) == [service()]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=40))
def test_a_distribution_is_in_order(values: list[float]) -> None:
    found = distribution_of(values)
    assert min(values) == found.min <= found.median <= found.p90 <= found.max == max(values)


GIB = 1 << 30
LIVE_CASE = LiveCase(
    name="case",
    level=0.4,
    online=case(0.4).pair.online,
    offline=(service(), service()),
    sizes=Sizes(6 * GIB, 4 * GIB, 5 * GIB, 3 * GIB),
)


def act(busy_ns: int, delayed_ns: int = 0, p99_ns: int = 100, *, evicted: int = 1) -> Act:
    scene = Scene(mode="through", wall_ns=1000, requests=10, latency_p99_ns=p99_ns, online_delayed_ns=delayed_ns,
                  busy_ns=busy_ns, sm_ns=40 * busy_ns)  # fmt: skip
    return Act(
        scene=scene,
        memory=busy_ns / 1000,
        offline_done_ns=(200, 100),
        evicted=evicted,
        came_back=True,
        health="healthy",
    )


def told(delayed_part: float = 0.01, *, evicted: int = 1) -> Told:
    asked_ns = 10 * LIVE_CASE.online.device_ns
    rounds = [(act(100), act(after, round(delayed_part * asked_ns), p99, evicted=evicted))
              for after, p99 in ((400, 110), (500, 900), (600, 120))]  # fmt: skip
    return told_of(LIVE_CASE, rounds, (0.8, 1.0), 80)


def test_a_live_case_is_the_median_of_its_rounds() -> None:
    found = told()
    assert (found.before.utilization, found.after.utilization) == (0.1, 0.5)
    assert (found.before.sm_activity, found.after.sm_activity) == (0.05, 0.25)
    assert (found.memory_before, found.memory_after) == (0.1, 0.5)
    assert found.p99_ratio_own_clock == pytest.approx(1.2)
    assert found.offline_vs_alone == pytest.approx(0.2 / 0.8 + 0.1 / 1.0)
    assert found.delay_ratio == pytest.approx(0.01, rel=1e-3)
    assert (found.rounds, found.evicted, found.came_back) == (3, 3, True)


def test_targets_that_are_missed_are_told_as_missed(judged: list[Judged]) -> None:
    slow = [msgspec.structs.replace(one, p99_ratio={**one.p99_ratio, PROTECTED: 1.2}) for one in judged]
    report = report_of(simulated_of([*slow, judged[0], judged[0], judged[0]]), [told(0.2)], [], 3, quick=True)
    missed = {name for name, met in report.met.items() if not met}
    assert "simulated: online p99 under MPS, max <= +5 %" in missed
    assert "live: online delay by the device's books, median <= 5 %" in missed
    assert "live: online delay by the device's books, max <= 5 %" in missed
    assert report.simulated is not None
    assert report.simulated.within[PROTECTED] <= 3 / 5
    assert all(report_of(None, [told()], [], 3, quick=True).met.values())
    assert not all(report_of(None, [told(evicted=0)], [], 3, quick=True).met.values())
    assert report_of(None, [], [], 3, quick=True).met == {}


@pytest.mark.skipif(not (DATA / "kernel_timelines").is_dir(), reason="needs the measurements: set COTENANT_DATA")
def test_measured_services_reach_every_level() -> None:
    cases, _ = node_cases(DATA, quick=True)
    assert {one.level for one in cases} == set(DAY)
    acted, missing = live_cases(DATA, quick=False)
    assert ([one.level for one in acted], missing) == (list(DAY), [])
    for one in acted:
        sizes = one.sizes
        assert sizes.service + sizes.first + sizes.second <= 16 * GIB < sum(msgspec.structs.astuple(sizes))
