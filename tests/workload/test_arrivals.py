"""Arrivals follow their rates, are reproducible by seed, and rescaled recordings keep their shape."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.units.instant import SECOND_NS
from cotenant.workload.arrivals import draw_arrivals, draw_instants, spread_instants
from cotenant.workload.rates import (
    BurstRate,
    DiurnalRate,
    RateProcess,
    StepRate,
    bursty_rate,
    constant_rate,
    rescale_trace,
)

RATES: dict[str, RateProcess] = {
    "steady": constant_rate(400),
    "steps": StepRate(((0, 100.0), (5 * SECOND_NS, 900.0))),
    "diurnal": DiurnalRate(400, 10 * SECOND_NS),
    "bursts": bursty_rate(400, 8, SECOND_NS // 20, SECOND_NS // 80),
}


@pytest.mark.parametrize("name", RATES)
def test_number_of_arrivals_follows_the_rate(name: str) -> None:
    instants = draw_instants(RATES[name], 10 * SECOND_NS, 3)
    assert abs(len(instants) / (4000 if name != "steps" else 5000) - 1) < 0.1
    assert list(instants) == sorted(instants)
    assert 0 <= instants[0] <= instants[-1] < 10 * SECOND_NS
    assert instants == draw_instants(RATES[name], 10 * SECOND_NS, 3)
    assert instants != draw_instants(RATES[name], 10 * SECOND_NS, 4)
    assert draw_arrivals(RATES[name], 10 * SECOND_NS, 3).instants_ns == instants


def _by_second(instants: tuple[int, ...]) -> list[int]:
    counts = [0] * 10
    for instant in instants:
        counts[instant // SECOND_NS] += 1
    return counts


def test_step_and_diurnal_rates() -> None:
    steps = _by_second(draw_instants(RATES["steps"], 10 * SECOND_NS, 0))
    assert max(steps[:5]) < 200
    assert min(steps[5:]) > 700
    day = _by_second(draw_instants(RATES["diurnal"], 10 * SECOND_NS, 0))
    assert min(day[4:6]) > 4 * max(day[0], day[9])


def test_bursts_vary_more_than_a_steady_load() -> None:
    """The index of dispersion of counts is 1 for Poisson arrivals."""

    def dispersion(rate: RateProcess) -> float:
        counts = [0] * 1000
        for instant in draw_instants(rate, 10 * SECOND_NS, 1):
            counts[instant * 100 // SECOND_NS] += 1
        mean = sum(counts) / len(counts)
        return sum((count - mean) ** 2 for count in counts) / len(counts) / mean

    assert dispersion(constant_rate(400)) < 1.3
    assert dispersion(RATES["bursts"]) > 2


def test_zero_rate_has_no_arrivals() -> None:
    assert draw_instants(constant_rate(0), SECOND_NS, 0) == ()
    assert bursty_rate(10, 1, 5, 7) == BurstRate(10, 10, 5, 7)


@given(
    st.lists(st.integers(1, 10**9), min_size=1, max_size=50),
    st.integers(1, 200),
    st.floats(0, 1),
)
def test_rescaled_recording_has_the_requested_rate(gaps: list[int], count: int, begin: float) -> None:
    recorded = tuple(itertools.accumulate(gaps, initial=0))
    instants = rescale_trace(recorded, count / 2, 2 * SECOND_NS, begin)
    assert len(instants) == count
    assert list(instants) == sorted(instants)
    assert 0 <= instants[0] <= instants[-1] < 2 * SECOND_NS


def test_rescaled_recording_keeps_its_shape() -> None:
    assert rescale_trace((0, 10, 20, 40), 3, SECOND_NS) == (0, SECOND_NS // 4, SECOND_NS // 2)
    assert rescale_trace((0, 10, 20, 40), 2, SECOND_NS, begin=0.5) == (0, SECOND_NS * 2 // 3)


def test_instants_of_a_coarse_clock_are_spread_until_the_next_tick() -> None:
    spread = spread_instants([0] * 50 + [3000] * 50 + [6000], 1)
    assert len(set(spread[:50])) > 40
    assert max(spread[:50]) < 3000 <= min(spread[50:100])
    assert spread[100] == 6000
    assert spread == spread_instants([0] * 50 + [3000] * 50 + [6000], 1)
