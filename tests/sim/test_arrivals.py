"""Do requests come as their rhythm says, the same under one seed, and does a recording keep its shape?"""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.domain.instant import SECOND_NS
from cotenant.domain.rhythm import Bursts, Diurnal, Rhythm, Steps, bursty, rescaled, steady
from cotenant.sim.arrivals import arrivals_of, instants_of, spread

RHYTHMS: dict[str, Rhythm] = {
    "steady": steady(400),
    "steps": Steps(((0, 100.0), (5 * SECOND_NS, 900.0))),
    "diurnal": Diurnal(400, 10 * SECOND_NS),
    "bursts": bursty(400, 8, SECOND_NS // 20, SECOND_NS // 80),
}


@pytest.mark.parametrize("name", RHYTHMS)
def test_as_many_come_as_the_rhythm_says(name: str) -> None:
    instants = instants_of(RHYTHMS[name], 10 * SECOND_NS, 3)
    assert abs(len(instants) / (4000 if name != "steps" else 5000) - 1) < 0.1
    assert list(instants) == sorted(instants)
    assert 0 <= instants[0] <= instants[-1] < 10 * SECOND_NS
    assert instants == instants_of(RHYTHMS[name], 10 * SECOND_NS, 3)
    assert instants != instants_of(RHYTHMS[name], 10 * SECOND_NS, 4)
    assert arrivals_of(RHYTHMS[name], 10 * SECOND_NS, 3).instants_ns == instants


def _by_second(instants: tuple[int, ...]) -> list[int]:
    counts = [0] * 10
    for instant in instants:
        counts[instant // SECOND_NS] += 1
    return counts


def test_a_step_comes_at_its_instant_and_a_day_has_its_noon() -> None:
    steps = _by_second(instants_of(RHYTHMS["steps"], 10 * SECOND_NS, 0))
    assert max(steps[:5]) < 200
    assert min(steps[5:]) > 700
    day = _by_second(instants_of(RHYTHMS["diurnal"], 10 * SECOND_NS, 0))
    assert min(day[4:6]) > 4 * max(day[0], day[9])


def test_bursts_vary_more_than_a_steady_load() -> None:
    """The index of dispersion of counts is 1 for Poisson arrivals."""

    def dispersion(rhythm: Rhythm) -> float:
        counts = [0] * 1000
        for instant in instants_of(rhythm, 10 * SECOND_NS, 1):
            counts[instant * 100 // SECOND_NS] += 1
        mean = sum(counts) / len(counts)
        return sum((count - mean) ** 2 for count in counts) / len(counts) / mean

    assert dispersion(steady(400)) < 1.3
    assert dispersion(RHYTHMS["bursts"]) > 2


def test_nobody_comes_to_a_service_that_nobody_calls() -> None:
    assert instants_of(steady(0), SECOND_NS, 0) == ()
    assert bursty(10, 1, 5, 7) == Bursts(10, 10, 5, 7)


@given(
    st.lists(st.integers(1, 10**9), min_size=1, max_size=50),
    st.integers(1, 200),
    st.floats(0, 1),
)
def test_a_recording_is_stretched_or_pressed_to_a_rate(gaps: list[int], count: int, begin: float) -> None:
    recorded = tuple(itertools.accumulate(gaps, initial=0))
    instants = rescaled(recorded, count / 2, 2 * SECOND_NS, begin)
    assert len(instants) == count
    assert list(instants) == sorted(instants)
    assert 0 <= instants[0] <= instants[-1] < 2 * SECOND_NS


def test_a_recording_keeps_its_shape() -> None:
    assert rescaled((0, 10, 20, 40), 3, SECOND_NS) == (0, SECOND_NS // 4, SECOND_NS // 2)
    assert rescaled((0, 10, 20, 40), 2, SECOND_NS, begin=0.5) == (0, SECOND_NS * 2 // 3)


def test_those_of_a_coarse_clock_are_moved_within_its_step() -> None:
    moved = spread([0] * 50 + [3000] * 50 + [6000], 1)
    assert len(set(moved[:50])) > 40
    assert max(moved[:50]) < 3000 <= min(moved[50:100])
    assert moved[100] == 6000
    assert moved == spread([0] * 50 + [3000] * 50 + [6000], 1)
