"""Tests of prediction of job speeds."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.cluster.model.cluster import OnlineUse
from cotenant.predict import speed as speed_module
from cotenant.predict.speed import SpeedPredictor, Speeds, co_runner_key
from cotenant.predict.speed_features import STEPS, Spot, gpu_side, job_side, pair_facts
from cotenant.predict.speed_model import FEATURES, Trees, features, rule
from cotenant.predict.speed_parameters import VERSION, load_parameters
from cotenant.predict.usage import TaskUse
from cotenant.units.share import WHOLE_PPM
from tests.support.effort import examples

parts = st.integers(1, WHOLE_PPM)


@st.composite
def uses(draw: st.DrawFn) -> TaskUse:
    kernel_ns = draw(st.integers(2_000, 1_000_000))
    duty = draw(st.integers(50_000, WHOLE_PPM))
    kernels = draw(st.integers(2, 200))
    return TaskUse(
        duty_ppm=duty,
        widths=tuple(draw(st.lists(st.tuples(parts, parts), min_size=1, max_size=3))),
        memory_ppm=draw(st.integers(0, WHOLE_PPM)),
        kernel_ns=kernel_ns,
        longest_ns=kernel_ns,
        round_ns=kernels * kernel_ns * WHOLE_PPM // duty,
        round_device_ns=kernels * kernel_ns,
        active_ppm=draw(st.integers(10_000, WHOLE_PPM)),
    )


@st.composite
def spots(draw: st.DrawFn, most: int = 3) -> Spot:
    online = draw(st.lists(uses(), max_size=most))
    reported = tuple(OnlineUse(f"s{place}", use) for place, use in enumerate(online))
    return Spot(reported, draw(st.integers(50_000, WHOLE_PPM)))


@pytest.mark.parametrize("mode", ["space", "mps", "time"])
@settings(max_examples=examples(15, 500), deadline=None)
@given(jobs=st.lists(uses() | st.none(), min_size=1, max_size=4), gpus=st.lists(spots(), min_size=1, max_size=4))
def test_answers_are_within_reason_and_the_same_one_by_one(
    mode: str, jobs: list[TaskUse | None], gpus: list[Spot]
) -> None:
    predictor = SpeedPredictor((), mode)
    found = predictor.predict(jobs, gpus)
    assert all(table.shape == (len(jobs), len(gpus)) and table.dtype == np.float32 for table in found)
    assert (found.point > 0).all()
    assert (found.point <= 1).all()
    assert (found.low <= found.point).all()
    assert (found.slowdown >= 1).all()
    assert (found.slowdown_high >= found.slowdown).all()
    for row, job in enumerate(jobs):
        for column, gpu in enumerate(gpus):
            alone = predictor.predict([job], [gpu])
            for whole, one in zip(found, alone, strict=True):
                assert one[0, 0] == pytest.approx(whole[row, column], rel=1e-4)


def test_there_is_no_online_slowdown_without_online_tenants() -> None:
    found = SpeedPredictor().predict([TaskUse(duty_ppm=900_000), None], [Spot((), WHOLE_PPM)])
    assert found.slowdown.tolist() == [[1.0], [1.0]]
    assert found.slowdown_high.tolist() == [[1.0], [1.0]]


@settings(max_examples=examples(40, 500), deadline=None)
@given(job=uses(), gpu=spots())
def test_what_nothing_is_known_of_is_taken_for_worse_than_what_something_is_known_of(job: TaskUse, gpu: Spot) -> None:
    """Slower at least, and at least as harmful, than what is predicted of a known job."""
    found = SpeedPredictor().predict([job, None], [gpu])
    assert found.low[1, 0] <= found.point[0, 0]
    assert found.slowdown_high[1, 0] >= found.slowdown[0, 0] * 0.999


@settings(max_examples=examples(40, 500), deadline=None)
@given(
    predicted=st.floats(0.06, 1),
    seen=st.floats(0.06, 1),
    times=st.integers(1, 30),
    co_runners=st.sampled_from(["", "a"]),
)
def test_the_error_falls_with_every_speed_that_is_seen(
    predicted: float, seen: float, times: int, co_runners: str
) -> None:
    predictor = SpeedPredictor()
    raw = _speeds(predicted, predicted / 2)
    error = abs(math.log(seen / predicted))
    for _ in range(times):
        predictor.learn("job", co_runners, predicted, seen)
        reported = float(predictor.corrected(raw, ["job"], ["a"]).point[0, 0])
        now = abs(math.log(seen / reported))
        assert now <= error + 1e-5
        error = now
    assert error <= abs(math.log(seen / predicted)) * 2 / (2 + min(times, 20)) + 1e-4


@settings(max_examples=examples(40, 500), deadline=None)
@given(predicted=st.floats(0.02, 1), seen=st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.02, 1)), max_size=20))
def test_what_is_safe_to_count_on_is_never_more_than_was_predicted_or_seen(
    predicted: float, seen: list[tuple[str, float]]
) -> None:
    predictor = SpeedPredictor()
    for co_runners, rate in seen:
        predictor.learn("job", co_runners, predicted, rate)
    reported = predictor.corrected(_speeds(predicted, predicted * 0.6), ["job", "other"], ["a", "z"][:1])
    best = max([predicted, *(rate for _, rate in seen)])
    assert float(reported.low[0, 0]) <= float(reported.point[0, 0]) <= best * 1.0001
    assert reported.slowdown[0, 0] == np.float32(1.5)
    assert reported.point[1, 0] == pytest.approx(predicted)


def test_what_is_learned_of_a_profile_holds_for_company_it_was_never_in() -> None:
    predictor = SpeedPredictor()
    for _ in range(10):
        predictor.learn("job", "a", 0.8, 0.4)
    reported = predictor.corrected(_speeds(0.8, 0.5, columns=2), ["job"], ["a", "elsewhere"])
    assert reported.point[0, 0] < reported.point[0, 1] < 0.8
    assert reported.low[0, 0] / reported.point[0, 0] > 0.5 / 0.8


def test_what_was_learned_survives_a_restart_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed_module, "LEARNED_LIMIT", 4)
    predictor = SpeedPredictor()
    for place in range(5):
        predictor.learn(f"job{place}", "a", 0.5, 0.25)
    predictor.learn("job3", "", 0.5, 0.3)
    learned = predictor.learned()
    assert [(profile, co_runners) for profile, co_runners, _, _ in learned] == [
        *[("job3", "a"), ("job4", ""), ("job4", "a"), ("job3", "")]
    ]
    again = SpeedPredictor(learned)
    assert again.learned() == learned
    raw = _speeds(0.5, 0.3)
    assert np.array_equal(again.corrected(raw, ["job3"], ["a"]).point, predictor.corrected(raw, ["job3"], ["a"]).point)


@pytest.mark.parametrize("predicted, seen", [(0.0, 0.5), (0.5, 0.0)])
def test_nothing_is_learned_from_a_speed_that_is_not_known(predicted: float, seen: float) -> None:
    predictor = SpeedPredictor()
    predictor.learn("job", "a", predicted, seen)
    assert predictor.learned() == ()


def test_company_is_the_same_in_any_order() -> None:
    one, other = OnlineUse("one"), OnlineUse("other")
    assert co_runner_key((one, other)) == co_runner_key((other, one)) == "one+other"


@settings(max_examples=examples(5, 100), deadline=None)
@given(job=uses(), gpu=spots(most=2))
def test_facts_of_a_pair_follow_the_distributions(job: TaskUse, gpu: Spot) -> None:
    """Against sums over every combination of widths."""
    jobs, gpus = job_side([job]), gpu_side([gpu])
    facts = pair_facts(jobs, gpus)
    share = gpus.share[0]
    held = enumerate(jobs.held[0])
    expected = sum(
        mine * theirs * max(0.0, min(place / STEPS, share) + other / STEPS - 1)
        for place, mine in held
        for other, theirs in enumerate(gpus.held[0])
    )
    assert facts.crowded[0, 0] == pytest.approx(expected, abs=1e-9)
    assert gpus.held.sum() == pytest.approx(1)
    assert gpus.own.sum() == pytest.approx(1)
    reported = rule(jobs, gpus, facts, sliced=False)
    assert features(jobs, gpus, facts, reported).shape == (len(FEATURES), 1, 1)
    assert reported.speed[0, 0] <= 1e-12


def test_the_kept_parameters_are_of_this_version() -> None:
    parameters = load_parameters()
    assert parameters.version == VERSION
    assert parameters.features == FEATURES
    assert set(parameters.modes) == {"space", "mps", "time"}
    assert "--quick" not in parameters.made_by
    assert all(0 < doubt < 5 for mode in parameters.modes.values() for doubt in mode.doubt)
    assert msgspec.json.decode(msgspec.json.encode(parameters), type=type(parameters)) == parameters


def test_trees_answer_as_walking_them_does() -> None:
    trees = Trees((((0, 1),), ((1,),)), (((0.5, 2.0),), ((1.0,),)), (((1.0, 2.0, 3.0, 4.0),), ((5.0, 6.0),)))
    rows = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 3.0], [1.0, 3.0]], dtype=np.float32)
    assert trees.errors(rows).tolist() == [[1.0, 5.0], [2.0, 5.0], [3.0, 6.0], [4.0, 6.0]]


def _speeds(point: float, low: float, columns: int = 1) -> Speeds:
    tables = (point, low, 1.5, 2.0)
    return Speeds(*(np.full((2 if columns == 1 else 1, columns), one, dtype=np.float32) for one in tables))
