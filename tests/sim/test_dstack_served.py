"""Whatever the models: is what was taken in time, does overload cost nothing, and does each have its part?"""

from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.domain.instant import SECOND_NS
from cotenant.domain.runtimes import RunTime, RunTimes
from cotenant.experiment.serve.bound import capacity, least_area
from cotenant.experiment.serve.simulated import Outcome, ServedModel, Setting, arrivals_of, play, poisson
from cotenant.experiment.serve.ways import way_of
from tests.effort import examples

MS = 1_000_000


@st.composite
def model(draw: st.DrawFn, name: str, all_units: int) -> ServedModel:
    """A model with a part that no units make quicker, one that they do up to a width, and some SLO."""
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


def played(models: list[ServedModel], all_units: int, load: float, way: str, seconds: float = 0.4) -> Outcome:
    areas = {one.name: least_area(one.times, one.slo_ns, one.batch_limit) for one in models}
    rate = capacity(areas, {one.name: 1 / len(models) for one in models}, all_units) * load / len(models)
    setting = Setting(all_units, int(seconds * SECOND_NS), warm_ns=SECOND_NS // 2, noise=0.0)
    arrivals = arrivals_of({one.name: poisson(rate) for one in models}, models, setting)
    return play(models, arrivals, way_of(way), setting)


@settings(max_examples=examples(4, 80), deadline=None)
@given(some_models(), st.sampled_from([0.6, 1.0, 2.0]))
def test_what_was_taken_is_in_time_where_runs_take_what_is_believed(
    given_models: tuple[int, list[ServedModel]], load: float
) -> None:
    all_units, models = given_models
    outcome = played(models, all_units, load, "dstack")
    for one in outcome.models:
        assert one.offered == one.refused + one.dropped + one.in_time + one.late
        assert one.late <= 2  # a model that did not run for a second is tried whatever is believed
    admitted = sum(one.admitted for one in outcome.models)
    assert sum(one.dropped for one in outcome.models) <= 0.03 * admitted + 2


@settings(max_examples=examples(2, 40), deadline=None)
@given(some_models())
def test_more_than_enough_load_costs_no_goodput(given_models: tuple[int, list[ServedModel]]) -> None:
    all_units, models = given_models
    full, over = (played(models, all_units, load, "dstack").goodput_per_s for load in (1.0, 2.0))
    assert over >= 0.9 * full


@settings(max_examples=examples(2, 30), deadline=None)
@given(model("light", 100), st.integers(2, 4))
def test_under_overload_each_has_its_part_by_weight(light: ServedModel, weight: int) -> None:
    heavy = ServedModel("heavy", light.times, light.slo_ns, weight=weight)
    outcome = played([light, heavy], 100, 4.0, "dstack", seconds=0.6)
    small, large = (one.device_part for one in outcome.models)
    assert large > small
    assert 0.6 * weight <= large / small <= 1.6 * weight
