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
from cotenant.predict.speed_model import FEATURES, SharingLaw, Trees, features, rule
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
    online_uses = tuple(OnlineUse(f"s{index}", use) for index, use in enumerate(online))
    return Spot(online_uses, draw(st.integers(50_000, WHOLE_PPM)))


@pytest.mark.parametrize("mode", ["space", "mps", "time"])
@settings(max_examples=examples(15, 500), deadline=None)
@given(jobs=st.lists(uses() | st.none(), min_size=1, max_size=4), gpus=st.lists(spots(), min_size=1, max_size=4))
def test_predictions_are_in_range_and_independent_of_batching(
    mode: str, jobs: list[TaskUse | None], gpus: list[Spot]
) -> None:
    predictor = SpeedPredictor((), mode)
    speeds = predictor.predict(jobs, gpus)
    assert all(table.shape == (len(jobs), len(gpus)) and table.dtype == np.float32 for table in speeds)
    assert (speeds.point > 0).all()
    assert (speeds.point <= 1).all()
    assert (speeds.low <= speeds.point).all()
    assert (speeds.slowdown >= 1).all()
    assert (speeds.slowdown_high >= speeds.slowdown).all()
    for row, job in enumerate(jobs):
        for column, gpu in enumerate(gpus):
            alone = predictor.predict([job], [gpu])
            for table, single in zip(speeds, alone, strict=True):
                assert single[0, 0] == pytest.approx(table[row, column], rel=1e-4)


def test_there_is_no_online_slowdown_without_online_tenants() -> None:
    speeds = SpeedPredictor().predict([TaskUse(duty_ppm=900_000), None], [Spot((), WHOLE_PPM)])
    assert speeds.slowdown.tolist() == [[1.0], [1.0]]
    assert speeds.slowdown_high.tolist() == [[1.0], [1.0]]


@settings(max_examples=examples(40, 500), deadline=None)
@given(job=uses(), gpu=spots())
def test_unknown_job_is_predicted_worse_than_any_known_job(job: TaskUse, gpu: Spot) -> None:
    """It is predicted to be at least as slow and at least as harmful as any known job."""
    speeds = SpeedPredictor().predict([job, None], [gpu])
    assert speeds.low[1, 0] <= speeds.point[0, 0]
    assert speeds.slowdown_high[1, 0] >= speeds.slowdown[0, 0] * 0.999


@settings(max_examples=examples(40, 500), deadline=None)
@given(
    predicted=st.floats(0.06, 1),
    measured=st.floats(0.06, 1),
    times=st.integers(1, 30),
    co_runners=st.sampled_from(["", "a"]),
)
def test_error_falls_with_every_measured_speed(predicted: float, measured: float, times: int, co_runners: str) -> None:
    predictor = SpeedPredictor()
    raw = _speeds(predicted, predicted / 2)
    error = abs(math.log(measured / predicted))
    for _ in range(times):
        predictor.learn("job", co_runners, predicted, measured)
        corrected = float(predictor.corrected(raw, ["job"], ["a"]).point[0, 0])
        new_error = abs(math.log(measured / corrected))
        assert new_error <= error + 1e-5
        error = new_error
    assert error <= abs(math.log(measured / predicted)) * 2 / (2 + min(times, 20)) + 1e-4


@settings(max_examples=examples(40, 500), deadline=None)
@given(
    predicted=st.floats(0.02, 1), measured=st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.02, 1)), max_size=20)
)
def test_lower_bound_never_exceeds_predicted_or_measured_speeds(
    predicted: float, measured: list[tuple[str, float]]
) -> None:
    predictor = SpeedPredictor()
    for co_runners, rate in measured:
        predictor.learn("job", co_runners, predicted, rate)
    corrected = predictor.corrected(_speeds(predicted, predicted * 0.6), ["job", "other"], ["a", "z"][:1])
    best = max([predicted, *(rate for _, rate in measured)])
    assert float(corrected.low[0, 0]) <= float(corrected.point[0, 0]) <= best * 1.0001
    assert corrected.slowdown[0, 0] == np.float32(1.5)
    assert corrected.point[1, 0] == pytest.approx(predicted)


def test_correction_of_a_profile_applies_to_new_co_runners() -> None:
    predictor = SpeedPredictor()
    for _ in range(10):
        predictor.learn("job", "a", 0.8, 0.4)
    corrected = predictor.corrected(_speeds(0.8, 0.5, columns=2), ["job"], ["a", "elsewhere"])
    assert corrected.point[0, 0] < corrected.point[0, 1] < 0.8
    assert corrected.low[0, 0] / corrected.point[0, 0] > 0.5 / 0.8


def test_corrections_survive_a_restart_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed_module, "LEARNED_LIMIT", 4)
    predictor = SpeedPredictor()
    for number in range(5):
        predictor.learn(f"job{number}", "a", 0.5, 0.25)
    predictor.learn("job3", "", 0.5, 0.3)
    learned = predictor.learned()
    assert [(profile, co_runners) for profile, co_runners, _, _ in learned] == [
        *[("job3", "a"), ("job4", ""), ("job4", "a"), ("job3", "")]
    ]
    restarted = SpeedPredictor(learned)
    assert restarted.learned() == learned
    raw = _speeds(0.5, 0.3)
    assert np.array_equal(
        restarted.corrected(raw, ["job3"], ["a"]).point, predictor.corrected(raw, ["job3"], ["a"]).point
    )


@pytest.mark.parametrize("predicted, measured", [(0.0, 0.5), (0.5, 0.0)])
def test_unknown_speed_is_not_learned(predicted: float, measured: float) -> None:
    predictor = SpeedPredictor()
    predictor.learn("job", "a", predicted, measured)
    assert predictor.learned() == ()


def test_co_runner_key_does_not_depend_on_order() -> None:
    first, second = OnlineUse("one"), OnlineUse("other")
    assert co_runner_key((first, second)) == co_runner_key((second, first)) == "one+other"


@settings(max_examples=examples(5, 100), deadline=None)
@given(job=uses(), gpu=spots(most=2))
def test_pair_facts_follow_the_distributions(job: TaskUse, gpu: Spot) -> None:
    """Compare with sums over every combination of widths."""
    jobs, gpus = job_side([job]), gpu_side([gpu])
    facts = pair_facts(jobs, gpus)
    share = gpus.share[0]
    held = enumerate(jobs.held[0])
    expected = sum(
        job_part * online_part * max(0.0, min(job_step / STEPS, share) + online_step / STEPS - 1)
        for job_step, job_part in held
        for online_step, online_part in enumerate(gpus.held[0])
    )
    assert facts.crowded[0, 0] == pytest.approx(expected, abs=1e-9)
    assert gpus.held.sum() == pytest.approx(1)
    assert gpus.own.sum() == pytest.approx(1)
    base = rule(jobs, gpus, facts, SharingLaw())
    assert features(jobs, gpus, facts, base).shape == (len(FEATURES), 1, 1)
    assert base.speed[0, 0] <= 1e-12


def test_stored_parameters_have_this_version() -> None:
    parameters = load_parameters()
    assert parameters.version == VERSION
    assert parameters.features == FEATURES
    assert set(parameters.modes) == {"space", "mps", "time"}
    assert "--quick" not in parameters.made_by
    assert all(0 < mode.doubt < 5 for mode in parameters.modes.values())
    assert msgspec.json.decode(msgspec.json.encode(parameters), type=type(parameters)) == parameters


def test_correction_has_no_effect_where_demand_fits_the_device() -> None:
    """Two programs that together fit the SMs and the bandwidth do not wait for each other, whatever a model says."""
    duty, kernel_ns, round_ns = 900_000, 100_000, 1_000_000
    half = TaskUse(duty, ((WHOLE_PPM // 2, WHOLE_PPM),), 100_000, kernel_ns, kernel_ns, round_ns, 900_000, WHOLE_PPM)
    whole = msgspec.structs.replace(half, widths=((WHOLE_PPM, WHOLE_PPM),))
    for mode in ("space", "mps"):
        own = load_parameters().modes[mode]
        predictions = []
        for trust in (0.0, 1.0):
            law = msgspec.structs.replace(own.law, trust=trust)
            modes = load_parameters().modes | {mode: msgspec.structs.replace(own, law=law)}
            predictor = SpeedPredictor(mode=mode, parameters=msgspec.structs.replace(load_parameters(), modes=modes))
            predictions.append(
                predictor.predict([half, whole], [Spot((OnlineUse("service", half),), WHOLE_PPM)]).point[:, 0]
            )
        assert predictions[0][0] == pytest.approx(predictions[1][0])
        assert predictions[0][1] != pytest.approx(predictions[1][1])


def test_vectorized_trees_match_walking_them() -> None:
    trees = Trees((((0, 1),), ((1,),)), (((0.5, 2.0),), ((1.0,),)), (((1.0, 2.0, 3.0, 4.0),), ((5.0, 6.0),)))
    rows = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 3.0], [1.0, 3.0]], dtype=np.float32)
    assert trees.errors(rows).tolist() == [[1.0, 5.0], [2.0, 5.0], [3.0, 6.0], [4.0, 6.0]]


def _speeds(point: float, low: float, columns: int = 1) -> Speeds:
    tables = (point, low, 1.5, 2.0)
    return Speeds(*(np.full((2 if columns == 1 else 1, columns), value, dtype=np.float32) for value in tables))
