"""Tests of prediction of load, and its calibration."""

import math
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.predict.calibration import Calibration, CalibrationRules
from cotenant.predict.diurnal_profile import DAY_NS
from cotenant.predict.load import Load, LoadRules
from cotenant.units.estimate import Estimate, around

HOUR_NS = DAY_NS // 24


@given(st.lists(st.integers(0, 10**6), max_size=60), st.integers(0, 10 * DAY_NS), st.integers(1, DAY_NS))
@settings(deadline=None)
def test_any_load_is_predicted_with_an_interval_in_bounded_memory(
    counts: list[int], begin_ns: int, window_ns: int
) -> None:
    load = Load()
    assert load.next_window(begin_ns) is None
    for index, requests in enumerate(counts):
        load = load.after(requests, begin_ns + index * window_ns)
        prediction = load.next_window(begin_ns + (index + 1) * window_ns)
        assert prediction is not None
        assert 0 <= prediction.low <= prediction.point <= prediction.high < math.inf
        assert min(counts) - 1e-6 <= prediction.point <= max(counts) + 1e-6
        assert len(load.day) == LoadRules().bins
    assert msgspec.json.decode(msgspec.json.encode(load), type=Load) == load


def test_steady_load_is_predicted_exactly_and_a_step_is_followed() -> None:
    load = Load()
    for index in range(50):
        load = load.after(100, index * 10**9)
    before = load.next_window(50 * 10**9)
    assert before is not None
    assert before.point == pytest.approx(100)
    for index in range(50, 60):
        load = load.after(300, index * 10**9)
    after = load.next_window(60 * 10**9)
    assert after is not None
    assert after.point > 250
    assert after.high - after.low > before.high - before.low  # recent errors widen the interval


def test_daily_burst_is_predicted_after_it_was_observed() -> None:
    """A burst every day at six, which no mean of recent windows can predict."""
    load, first, last = Load(), None, None
    rules = LoadRules(bins=24)
    for day in range(8):
        for hour in range(24):
            at_ns = day * DAY_NS + hour * HOUR_NS
            prediction = load.next_window(at_ns, rules)
            if hour == 6 and prediction is not None:
                first, last = (prediction.point if day == 0 else first), prediction.point
            load = load.after(1000 if hour == 6 else 100, at_ns, rules)
    assert first is not None
    assert last is not None
    assert first < 200
    assert last > 900


def test_intervals_of_random_arrivals_have_the_stated_coverage() -> None:
    rng = random.Random(5)
    load, covered, windows = Load(), 0, 0
    for index in range(2000):
        requests = max(0, round(rng.gauss(80, 9)))
        prediction = load.next_window(index * 10**9)
        if prediction is not None and index > 100:
            windows += 1
            covered += prediction.holds(requests)
        load = load.after(requests, index * 10**9)
    assert 0.86 < covered / windows < 0.95


@pytest.mark.parametrize("bias, noise", [(1.5, 0.05), (0.6, 0.3), (1.0, 0.04), (1.0, 0.8)])
def test_calibration_finds_the_bias_and_the_stated_coverage(bias: float, noise: float) -> None:
    rng = random.Random(11)
    calibration, covered, points = Calibration(), 0, []
    for turn in range(3000):
        raw = around(rng.uniform(1, 100), 0.2)
        outcome = raw.point * bias * math.exp(rng.gauss(0, noise))
        if turn >= 1000:
            covered += calibration.corrected(raw).holds(outcome)
            points.append(calibration.corrected(raw).point / raw.point)
        calibration = calibration.after(raw, outcome)
    assert covered / 2000 == pytest.approx(0.9, abs=0.02)
    assert math.exp(sum(map(math.log, points)) / 2000) == pytest.approx(bias, rel=0.1)
    assert "3000 outcomes" in calibration.why


@given(
    st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e9), st.floats(0, 3)), max_size=40),
    st.builds(CalibrationRules, st.floats(0.01, 1), st.integers(0, 5), st.floats(0, 2), st.floats(0.01, 1)),
)
@settings(deadline=None)
def test_calibration_stays_within_its_bounds_for_any_outcomes(
    outcomes: list[tuple[float, float, float]], rules: CalibrationRules
) -> None:
    calibration = Calibration()
    for point, outcome, doubt in outcomes:
        calibration = calibration.after(around(point, doubt), outcome, rules)
        corrected = calibration.corrected(around(point, doubt))
        assert corrected.low <= corrected.point * (1 + 1e-9) <= corrected.high * (1 + 2e-9)
        assert abs(calibration.shift) <= rules.max_shift + 1e-12
        assert math.log(rules.min_scale) - 1e-9 <= calibration.log_scale <= math.log(rules.max_scale) + 1e-9
    assert calibration.seen == len(outcomes) >= calibration.held
    assert calibration.why


def test_calibration_without_outcomes_changes_nothing() -> None:
    raw = Estimate(1.0, 2.0, 4.0)
    assert Calibration().corrected(raw) == raw
    assert "as predicted" in Calibration().why
