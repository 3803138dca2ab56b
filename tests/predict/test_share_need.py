"""Tests of the share that an objective needs."""

from __future__ import annotations

import heapq
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.predict.share_need import AloneLatency, Objective, alone_of, latency_ns, need_ppm, tolerable_ppm
from cotenant.predict.usage import TaskUse
from cotenant.units.estimate import Estimate, around
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS
from cotenant.units.share import WHOLE_PPM

_TOLERANCE = 1e-6
means = st.floats(1e5, 1e9)
tails = st.floats(1.0, 8.0)
duties = st.floats(0.05, 1.0)
rates = st.floats(0.0, 2000.0)
factors = st.floats(1.0, 10.0)
objectives = st.builds(Objective, st.sampled_from([0.9, 0.95, 0.99]), st.floats(0.0, 0.5), st.floats(1.0, 5.0))


def alone(mean_ns: float, tail: float, duty: float = 1.0) -> AloneLatency:
    return AloneLatency(mean_ns, mean_ns * tail, duty=duty)


def certain(value: float) -> Estimate:
    return Estimate(value, value, value)


@given(means, tails, duties, rates, means, factors, objectives)
def test_need_never_falls_with_load_or_latency_and_never_rises_with_the_objective(
    mean_ns: float, tail: float, duty: float, rate: float, slo_ns: float, factor: float, objective: Objective
) -> None:
    latency = alone(mean_ns, tail, duty)
    base = need_ppm(latency, int(slo_ns), around(rate, 0.1), objective)
    busier = need_ppm(latency, int(slo_ns), around(rate * factor, 0.1), objective)
    slower = need_ppm(alone(mean_ns * factor, tail, duty), int(slo_ns), around(rate, 0.1), objective)
    looser = need_ppm(latency, int(slo_ns * factor), around(rate, 0.1), objective)
    for harder, easier in ((busier, base), (slower, base), (base, looser)):
        for bound in ("low", "point", "high"):
            assert getattr(harder.share, bound) >= getattr(easier.share, bound) * (1 - _TOLERANCE)
        assert easier.is_within_reach or not harder.is_within_reach


@given(means, tails, duties, rates, means, objectives)
def test_need_is_sufficient_and_slightly_less_is_not(
    mean_ns: float, tail: float, duty: float, rate: float, slo_ns: float, objective: Objective
) -> None:
    latency = alone(mean_ns, tail, duty)
    need = need_ppm(latency, int(slo_ns), certain(rate), objective)
    target_ns = int(slo_ns) * (1 - objective.headroom)
    share = need.share.point / WHOLE_PPM
    assert need.share.low <= need.share.point <= need.share.high <= WHOLE_PPM
    if not need.is_within_reach:
        assert share == 1
        assert "beyond reach" in need.why
        # A latency of exactly the target is out of reach as well: the search needs at least one step of headroom.
        assert latency_ns(latency, 1.0, rate, objective) >= target_ns
        return
    assert latency_ns(latency, share, rate, objective) <= target_ns * (1 + _TOLERANCE)
    if share > objective.least:
        assert latency_ns(latency, share * 0.999, rate, objective) > target_ns * (1 - 1e-3)


@given(
    st.lists(st.tuples(st.floats(0.05, 1.0), st.floats(1.0, 20.0)), min_size=1, max_size=6, unique_by=lambda p: p[0]),
    st.floats(0.01, 1.0),
    st.floats(0.01, 1.0),
)
def test_stretch_of_any_curve_never_rises_with_the_share(
    points: list[tuple[float, float]], first_share: float, second_share: float
) -> None:
    latency = AloneLatency(1e6, 1e6, curve=tuple(sorted(points)))
    low, high = sorted((first_share, second_share))
    assert latency.stretch(low) >= latency.stretch(high) * (1 - _TOLERANCE)
    assert latency.stretch(high) >= 1


def simulated_latencies(
    mean_ns: float, tail: float, rate: float, *, burst: int, requests: int = 120_000
) -> list[float]:
    """Return latencies of one FIFO server with fixed plus exponential services, and arrivals in groups of `burst`."""
    rng = random.Random(7)
    variable_ns = (tail - 1) * mean_ns / (math.log(100) - 1)
    fixed_ns = mean_ns - variable_ns
    now_ns = free_ns = 0.0
    latencies = []
    for number in range(requests):
        if number % burst == 0:
            now_ns += rng.expovariate(rate / burst) * SECOND_NS
        service_ns = fixed_ns + (rng.expovariate(1 / variable_ns) if variable_ns else 0.0)
        free_ns = max(free_ns, now_ns) + service_ns
        latencies.append(free_ns - now_ns)
    return latencies


def p99(latencies: list[float]) -> float:
    return heapq.nlargest(len(latencies) // 100, latencies)[-1]


@pytest.mark.parametrize("tail", [1.0, 1.25, 3.0])
@pytest.mark.parametrize("busy", [0.02, 0.3, 0.6, 0.85])
def test_predicted_tail_matches_a_simulated_queue(tail: float, busy: float) -> None:
    mean_ns = 5 * MILLISECOND_NS
    rate = busy * SECOND_NS / mean_ns
    reported_ns = latency_ns(alone(mean_ns, tail), 1.0, rate)
    assert reported_ns == pytest.approx(p99(simulated_latencies(mean_ns, tail, rate, burst=1)), rel=0.12)


@pytest.mark.parametrize("busy", [0.1, 0.3, 0.6])
@pytest.mark.parametrize("burst", [2, 4])
def test_predicted_tail_of_bursts_is_not_below_the_simulated_one(busy: float, burst: int) -> None:
    """Groups of `burst` requests have this dispersion; the prediction is at most half as much again."""
    mean_ns = 5 * MILLISECOND_NS
    rate = busy * SECOND_NS / mean_ns
    reported_ns = latency_ns(alone(mean_ns, 1.25), 1.0, rate, Objective(dispersion=float(burst)))
    simulated_ns = p99(simulated_latencies(mean_ns, 1.25, rate, burst=burst))
    assert simulated_ns * 0.9 <= reported_ns <= simulated_ns * 1.5


def test_measured_duration_replaces_that_of_the_profile() -> None:
    use = TaskUse(duty_ppm=500_000, round_ns=10 * MILLISECOND_NS)
    believed = alone_of(use)
    measured = [
        alone_of(use, requests, requests * 21 * MILLISECOND_NS, requests * MILLISECOND_NS) for requests in (10, 1000)
    ]
    assert believed is not None
    assert believed.mean_ns == 10 * MILLISECOND_NS
    few, many = measured
    assert few is not None
    assert many is not None
    assert believed.mean_ns < few.mean_ns < many.mean_ns < 20 * MILLISECOND_NS
    assert many.mean_ns > 19 * MILLISECOND_NS
    assert believed.doubt > few.doubt > many.doubt
    assert alone_of(None) is None
    assert alone_of(TaskUse(), 0, 5, 0) is None


@given(
    st.floats(1e5, 1e9),
    st.floats(0.5, 100),
    st.floats(0, 1.5),
    st.integers(500_000, 999_000),
    st.integers(0, 300_000),
)
def test_tolerable_share_is_bounded_and_falls_with_a_wider_objective(
    mean_ns: float, times: float, busy: float, most_ppm: int, reserve_ppm: int
) -> None:
    def tolerable(times: float, busy: float, reserve_ppm: int = reserve_ppm) -> int:
        return tolerable_ppm(mean_ns, round(times * mean_ns), busy, most_ppm, reserve_ppm)

    assert min(800_000, most_ppm) <= tolerable(times, busy) <= most_ppm
    assert tolerable(times + 1, busy) <= tolerable(times, busy) <= tolerable(times, busy + 0.1)
    assert tolerable(times, 1.0) == tolerable(times, busy, 0) == most_ppm, (
        "in overload, or where nothing can be spared, the maximum"
    )


def test_tolerable_share_costs_a_request_the_reserve_of_its_objective() -> None:
    mean_ns, slo_ns = 10_000_000, 15_000_000
    lost_ns = mean_ns * (1_000_000 / tolerable_ppm(mean_ns, slo_ns, 0.0, 980_000, 100_000) - 1)
    assert lost_ns / slo_ns == pytest.approx(0.1, rel=1e-3)
