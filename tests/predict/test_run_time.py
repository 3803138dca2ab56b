"""Tests of prediction of run times."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.predict.run_time import Drift, ServiceTimes
from cotenant.serve.model.run_times import RunTime, RunTimes

UNITS = (1, 2, 4)
ROWS = (1, 2, 4, 8)


def law_ns(rows: int, units: int, speed: float = 1.0) -> int:
    return round((100_000 + 400_000 * rows / units) / speed)


def profile(speed: float = 1.0) -> RunTimes:
    times = [
        RunTime(units, rows, law_ns(rows, units, speed), law_ns(rows, units, speed) * 5 // 4)
        for units in UNITS
        for rows in ROWS
    ]
    return RunTimes(4, tuple(times), 4)


outcomes = st.lists(
    st.tuples(st.integers(1, 12), st.sampled_from((0, 1, 2, 3, 4)), st.integers(0, 10**10)), max_size=40
)
measured = st.dictionaries(
    st.tuples(st.sampled_from((1, 2, 4, 8)), st.sampled_from((1, 2, 3, 4, 8))),
    st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)),
    min_size=1,
).map(
    lambda cells: RunTimes(
        8, tuple(RunTime(units, rows, low, low + more) for (units, rows), (low, more) in cells.items()), 1
    )
)


def test_size_that_never_ran_is_interpolated_from_neighbouring_sizes() -> None:
    times = ServiceTimes()
    assert times.expected_ns(4, 1) == times.high_ns(4, 1) == 0
    times.learn(4, 1, 800)
    assert tuple(times.expected_ns(rows, 1) for rows in (2, 4, 8)) == (800, 800, 1600)
    times.learn(2, 1, 500)
    assert tuple(times.expected_ns(rows, 1) for rows in (1, 2, 3)) == (500, 500, 650)


def test_profile_is_used_as_given_and_interpolated_between_its_points() -> None:
    times = ServiceTimes(profile())
    assert times.widths == UNITS
    for units in UNITS:
        for rows in range(1, 9):
            assert times.expected_ns(rows, units) == pytest.approx(law_ns(rows, units), abs=1)
            assert times.high_ns(rows, units) == pytest.approx(1.25 * law_ns(rows, units), abs=2)
    assert times.expected_ns(8, 3) == pytest.approx(law_ns(8, 3), abs=1)
    assert times.expected_ns(8, 0) == times.expected_ns(8, 4)
    assert times.expected_ns(16, 4) == 2 * times.expected_ns(8, 4)


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=30))
def test_prediction_stays_within_the_observed_durations(durations: list[int]) -> None:
    times = ServiceTimes()
    for took in durations:
        times.learn(1, 1, took)
    assert min(durations) - 1 <= times.expected_ns(1, 1) <= max(durations) + 1


@given(measured | st.none(), outcomes)
def test_durations_never_fall_with_rows_and_quantile_is_never_below_typical(
    times: RunTimes | None, runs: list[tuple[int, int, int]]
) -> None:
    service = ServiceTimes(times)
    for rows, units, took in [*runs, (1, 1, 1)]:
        for width in (0, 1, 2, 3, 4, 8):
            typical = [service.expected_ns(size, width) for size in range(1, 20)]
            high = [service.high_ns(size, width) for size in range(1, 20)]
            assert typical == sorted(typical)
            assert high == sorted(high)
            assert all(0 <= low <= quantile for low, quantile in zip(typical, high, strict=True))
        service.learn(rows, units, took)


@given(st.floats(0.1, 10), st.integers(0, 1 << 32))
def test_prediction_follows_a_change_of_speed(speed: float, seed: int) -> None:
    rng = random.Random(seed)
    service = ServiceTimes(profile())
    for _ in range(120):
        rows, units = rng.choice(ROWS), rng.choice(UNITS)
        service.learn(rows, units, round(law_ns(rows, units, speed) * rng.uniform(0.97, 1.03)))
    for rows in ROWS:
        for units in UNITS:
            assert service.expected_ns(rows, units) == pytest.approx(law_ns(rows, units, speed), rel=0.15)


@settings(max_examples=20)
@given(st.integers(0, 1 << 32), st.floats(0.02, 0.5))
def test_high_quantile_is_exceeded_about_as_often_as_stated(seed: int, spread: float) -> None:
    rng = random.Random(seed)
    service = ServiceTimes(profile())
    exceeded = 0
    for number in range(1500):
        rows, units = rng.choice(ROWS), rng.choice(UNITS)
        took = round(law_ns(rows, units) * math.exp(rng.gauss(0, spread)))
        exceeded += number >= 500 and took > service.high_ns(rows, units)
        service.learn(rows, units, took)
    assert (
        exceeded <= 40
    )  # of 1000; 10 in the long run; a quantile that is never exceeded would reject too many requests
    assert exceeded >= 1


@given(st.sampled_from(ROWS), st.sampled_from(UNITS), st.integers(2, 1000))
def test_isolated_slow_run_is_soon_forgotten(rows: int, units: int, times: int) -> None:
    service = ServiceTimes(profile())
    service.learn(rows, units, times * law_ns(rows, units))
    assert service.expected_ns(rows, units) <= 1.07 * law_ns(rows, units)
    assert service.high_ns(rows, units) <= 1.2 * 1.25 * law_ns(rows, units)
    for _ in range(10):
        service.learn(rows, units, law_ns(rows, units))
    assert service.expected_ns(rows, units) == pytest.approx(law_ns(rows, units), rel=0.03)


def run_all(services: list[ServiceTimes], speeds: list[float], rounds: int) -> None:
    for _ in range(rounds):
        for service, speed in zip(services, speeds, strict=True):
            service.learn(4, 2, law_ns(4, 2, speed))


@pytest.mark.parametrize("speed", [0.4, 2.5])
def test_change_of_the_machine_is_distinguished_from_change_of_a_model(speed: float) -> None:
    drift = Drift()
    services = [ServiceTimes(profile(), 1, drift) for _ in range(4)]
    idle = services.pop()
    run_all(services, [1, 1, 1], 30)
    run_all(services, [speed, 1, 1], 60)  # one model alone
    assert idle.expected_ns(4, 2) == pytest.approx(law_ns(4, 2), rel=0.05)
    assert services[0].slower[1] == pytest.approx(1 / speed, rel=0.25)
    run_all(services, [speed * speed, speed, speed], 60)  # all of them
    assert idle.expected_ns(4, 2) == pytest.approx(law_ns(4, 2, speed), rel=0.15)
    assert drift.level == pytest.approx(-math.log(speed), rel=0.2)
    assert services[1].slower[1] == pytest.approx(1, rel=0.15)


def test_one_model_alone_does_not_move_the_machine_factor() -> None:
    drift = Drift()
    busy, idle = (ServiceTimes(profile(), 1, drift) for _ in range(2))
    run_all([busy], [0.2], 100)
    assert idle.expected_ns(4, 2) == law_ns(4, 2)
    assert busy.expected_ns(4, 2) == pytest.approx(law_ns(4, 2, 0.2), rel=0.05)


def test_returning_model_keeps_its_own_difference() -> None:
    """A model that is always slower than measured does not change the machine's factor."""
    drift = Drift()
    services = [ServiceTimes(profile(), 1, drift) for _ in range(3)]
    run_all(services[:1], [0.5], 100)
    run_all(services[1:], [1, 1], 100)
    run_all(services, [0.5, 1, 1], 30)
    assert drift.level == pytest.approx(0, abs=0.05)
