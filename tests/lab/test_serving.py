"""Tests that every request is accounted for in every serving mode, and that the bound holds."""

import itertools
import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.serve.model.run_times import RunTime, RunTimes
from cotenant.serve.policy import policy_names
from cotenant_lab.serving.arrival_bound import most_in_time, row_areas
from cotenant_lab.serving.bound import bound, capacity, concave_hull, fair_bound, least_area
from cotenant_lab.serving.fairness import jain
from cotenant_lab.serving.modes import ADMITTED, AWARE, BLIND, ServingMode, mode_of
from cotenant_lab.serving.simulated import ServedModel, Setting, arrivals_of, in_bursts, play, poisson, recorded

MS = 1_000_000
BATCHES = (1, 2, 4, 8)
WIDTHS = (5, 10, 20, 40, 100)
MODES = [*policy_names(), *(name + ADMITTED for name in (*BLIND, *AWARE))]


def times(host_us: int, wide_us: int, row_us: int) -> RunTimes:
    """Return run times: the maximum of the launch time and the compute time on the whole device."""
    cells = []
    for rows in BATCHES:
        for units in WIDTHS:
            took = max(host_us, (wide_us + row_us * rows) * 100 // units) * 1000
            cells.append(RunTime(units, rows, took, took * 21 // 20))
    return RunTimes(100, tuple(cells), 20)


MODELS = [
    ServedModel("light", times(6000, 300, 150), 36 * MS),
    ServedModel("heavy", times(12000, 900, 2400), 120 * MS),
    ServedModel("flat", times(18000, 300, 300), 75 * MS),
]
AREAS = {model.name: least_area(model.times, model.slo_ns, model.batch_limit) for model in MODELS}


def setting(seed: int = 0, noise: float = 0.0, for_ms: int = 200) -> Setting:
    return Setting(100, for_ms * MS, 50 * MS, seed, noise)


def rates(load: float) -> dict[str, float]:
    return {name: load * 100e9 / len(AREAS) / area for name, area in AREAS.items()}


@pytest.mark.parametrize("name", MODES)
def test_every_request_has_one_result_and_the_bound_holds(name: str) -> None:
    for load, rhythm in ((0.4, poisson), (1.6, in_bursts)):
        chosen = setting(seed=3)
        arrivals = arrivals_of({one: rhythm(rate) for one, rate in rates(load).items()}, MODELS, chosen)
        outcome = play(MODELS, arrivals, mode_of(name), chosen)
        assert outcome == play(MODELS, arrivals, mode_of(name), chosen)
        for model in outcome.models:
            counted = [when for when in arrivals[model.name] if 50 * MS <= when < 250 * MS]
            assert model.offered == len(counted) == model.refused + model.dropped + model.in_time + model.late
        longer = msgspec.structs.replace(chosen, all_units=100 * (200 + 120) // 200)
        assert outcome.goodput_per_s <= most_in_time(MODELS, arrivals, longer)[0] * (1 + 1e-9)
        area = sum(model.in_time * AREAS[model.name] for model in outcome.models)
        assert area <= 100 * (200 + 120) * MS
        assert outcome.utilization <= outcome.held + 1e-9 <= 1 + 2e-9
        assert outcome.goodput_per_s > 0 or not mode_of(name).knows_slo


def test_modes_without_objectives_answer_every_request() -> None:
    chosen = setting()
    arrivals = arrivals_of({one: poisson(rate) for one, rate in rates(1.5).items()}, MODELS, chosen)
    blind = play(MODELS, arrivals, mode_of("triton"), chosen)
    assert sum(model.refused + model.dropped for model in blind.models) == 0
    assert sum(model.late for model in blind.models) > 0
    results = play(MODELS, arrivals, mode_of("triton" + ADMITTED), chosen)
    assert sum(model.refused + model.dropped for model in results.models) > 0
    assert results.goodput_per_s > blind.goodput_per_s


def test_temporal_holds_the_whole_device_and_uses_little_of_it() -> None:
    chosen = setting()
    arrivals = arrivals_of({one: poisson(rate) for one, rate in rates(0.5).items()}, MODELS, chosen)
    turns = play(MODELS, arrivals, mode_of("temporal"), chosen)
    together = play(MODELS, arrivals, mode_of("triton"), chosen)
    assert turns.held > 0.99
    assert turns.utilization < together.utilization
    assert turns.goodput_per_s < together.goodput_per_s


def test_recorded_arrivals_keep_their_shape_at_any_rate() -> None:
    chosen = setting()
    found = recorded({"light": (0, 1, 9)}, {"light": 100.0}, MODELS[:1], chosen)["light"]
    assert len(found) == round(100.0 * (50 + 200 + 36) / 1000)
    gaps = [after - before for before, after in itertools.pairwise(found)]
    assert max(gaps) == pytest.approx(8 * min(gaps), rel=0.01)


def test_modes_are_as_published_by_default() -> None:
    assert mode_of("triton") == ServingMode("triton", "triton", "accept-all", knows_slo=False)
    assert mode_of("clipper") == ServingMode("clipper", "clipper", "accept-all", knows_slo=True)
    assert mode_of("temporal + admission") == ServingMode(
        "temporal + admission", "temporal", "deadline", knows_slo=True
    )
    assert mode_of("dstack") == ServingMode("dstack", "dstack", "deadline", knows_slo=True)


def test_least_area_is_that_of_the_largest_batch_in_time() -> None:
    # 8 rows at 5 units compute for (0.3 + 1.2) x 20 = 30 ms: within 36, and no other way is smaller
    assert AREAS["light"] == pytest.approx(5 * 30 * MS / 8)
    assert least_area(MODELS[0].times, 6_600_000, 8) > AREAS["light"]
    assert least_area(MODELS[0].times, MS, 8) == math.inf


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=10))
def test_hull_is_concave_and_bounds_all_points(points: list[tuple[float, float]]) -> None:
    hull = concave_hull([(0.0, 0.0), *points])
    slopes = [(y - b) / (x - a) for (a, b), (x, y) in itertools.pairwise(hull) if x > a]
    assert slopes == sorted(slopes, reverse=True)
    for x, y in points:
        above = [b for a, b in hull if a >= x]
        assert y <= max(above, default=hull[-1][1]) + 1e-9 or y <= hull[-1][1] + 1e-9


@settings(max_examples=50)
@given(st.lists(st.floats(0.0, 1000.0), min_size=3, max_size=3))
def test_bound_fills_device_or_serves_all_and_fair_bound_is_lower(asked: list[float]) -> None:
    offered = dict(zip(AREAS, asked, strict=True))
    most, fair = bound(AREAS, offered, 100), fair_bound(AREAS, offered, 100)
    for found in (most, fair):
        assert sum(found[name] * AREAS[name] for name in AREAS) <= 100e9 * (1 + 1e-9)
        assert all(found[name] <= offered[name] * (1 + 1e-9) for name in AREAS)
    assert sum(fair.values()) <= sum(most.values()) * (1 + 1e-9)
    if sum(offered[name] * AREAS[name] for name in AREAS) <= 100e9:
        assert most == offered
    mix = dict.fromkeys(AREAS, 1 / 3)
    full = capacity(AREAS, mix, 100)
    assert sum(full * mix[name] * AREAS[name] for name in AREAS) == pytest.approx(100e9)


def test_requests_far_apart_cannot_share_a_run() -> None:
    light = MODELS[0]  # a row at 5 units takes 9 ms
    areas = row_areas(light, (0, 100 * MS, 200 * MS))
    assert areas == pytest.approx([5 * 9 * MS] * 3)
    together = row_areas(light, [0] * 8)
    assert together == pytest.approx([AREAS["light"]] * 8)
    between = row_areas(light, (0, 26 * MS))  # 10 ms are left for a run of both: at 5 units it takes 12
    assert AREAS["light"] < between[0] == between[1] <= 5 * 9 * MS
    assert row_areas(light, ()).size == 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 300 * MS), max_size=40).map(sorted), min_size=3, max_size=3))
def test_arrival_bound_never_exceeds_the_bound(came: list[list[int]]) -> None:
    chosen = Setting(2, 150 * MS, 50 * MS)
    arrivals = {model.name: one for model, one in zip(MODELS, came, strict=True)}
    offered = {name: sum(50 * MS <= when < 200 * MS for when in one) * 1000 / 150 for name, one in arrivals.items()}
    most, fair = most_in_time(MODELS, arrivals, chosen)
    assert fair <= most + 7  # a request more or less
    assert most <= sum(bound(AREAS, offered, 2).values()) * (1 + 1e-9) + 1e-6
    assert fair <= sum(fair_bound(AREAS, offered, 2).values()) * (1 + 1e-9) + 1e-6


def test_jain_index() -> None:
    assert [jain(parts) for parts in ([2, 2], [1, 0], [], [0, 0])] == [1, 0.5, 0, 0]
