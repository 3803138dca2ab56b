"""Properties of serving under D-STACK: accepted requests are in time, and models get their part."""

from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.serve.model.run_times import RunTime, RunTimes
from cotenant.units.instant import SECOND_NS
from cotenant_lab.serving.bound import capacity, least_area
from cotenant_lab.serving.modes import mode_of
from cotenant_lab.serving.simulated import ServedModel, ServingOutcome, Setting, arrivals_of, play, poisson
from tests.support.effort import examples

MS = 1_000_000


@st.composite
def model(draw: st.DrawFn, name: str, all_units: int) -> ServedModel:
    """Return a model with a serial part, a part that scales up to a width, and an objective."""
    widths = (1, 2) if all_units == 2 else (10, 20, 40, 60, 100)
    fixed_ms = draw(st.floats(1, 4))
    row_ms = draw(st.floats(2, 8))
    width = draw(st.sampled_from(widths))
    times = []
    for units in widths:
        for rows in (1, 2, 4, 8):
            speed = min(units, width * rows**0.5, all_units) / all_units
            typical_ns = int((fixed_ms + row_ms * rows**0.9 / speed / 4) * MS)
            times.append(RunTime(units, rows, typical_ns, typical_ns + typical_ns // 20))
    solo_ns = min(one.typical_ns for one in times if one.rows == 1)
    slo_ns = int(solo_ns * draw(st.floats(4, 20)))
    return ServedModel(name, RunTimes(all_units, tuple(times), width), slo_ns)


@st.composite
def some_models(draw: st.DrawFn) -> tuple[int, list[ServedModel]]:
    all_units = draw(st.sampled_from([2, 100]))
    count = draw(st.integers(2, 4))
    return all_units, [draw(model(f"m{place}", all_units)) for place in range(count)]


def played(models: list[ServedModel], all_units: int, load: float, mode: str, seconds: float = 0.4) -> ServingOutcome:
    areas = {one.name: least_area(one.times, one.slo_ns, one.batch_limit) for one in models}
    rate = capacity(areas, {one.name: 1 / len(models) for one in models}, all_units) * load / len(models)
    setting = Setting(all_units, int(seconds * SECOND_NS), warm_ns=SECOND_NS // 2, noise=0.0)
    arrivals = arrivals_of({one.name: poisson(rate) for one in models}, models, setting)
    return play(models, arrivals, mode_of(mode), setting)


@settings(max_examples=examples(4, 80), deadline=None)
@given(some_models(), st.sampled_from([0.6, 1.0, 2.0]))
def test_accepted_requests_are_in_time_if_run_times_are_exact(
    given_models: tuple[int, list[ServedModel]], load: float
) -> None:
    all_units, models = given_models
    outcome = played(models, all_units, load, "dstack")
    for one in outcome.models:
        assert one.offered == one.refused + one.dropped + one.in_time + one.late
        assert one.late <= 2  # a model that did not run for a second is tried whatever the prediction is
    admitted = sum(one.admitted for one in outcome.models)
    assert sum(one.dropped for one in outcome.models) <= 0.03 * admitted + 2


@settings(max_examples=examples(2, 40), deadline=None)
@given(some_models())
def test_overload_costs_no_goodput(given_models: tuple[int, list[ServedModel]]) -> None:
    all_units, models = given_models
    full, over = (played(models, all_units, load, "dstack").goodput_per_s for load in (1.0, 2.0))
    assert over >= 0.9 * full


@settings(max_examples=examples(2, 30), deadline=None)
@given(model("light", 100), st.integers(2, 4))
def test_each_model_gets_its_weighted_part_at_overload(light: ServedModel, weight: int) -> None:
    heavy = ServedModel("heavy", light.times, light.slo_ns, weight=weight)
    outcome = played([light, heavy], 100, 4.0, "dstack", seconds=0.6)
    small, large = (one.device_part for one in outcome.models)
    assert large > small
    assert 0.6 * weight <= large / small <= 1.6 * weight
