"""Schedules that know all arrivals: within the fluid bound, complete at low load, never better without waiting."""

import pytest

from cotenant.serve.model.run_times import RunTime, RunTimes
from cotenant_lab.bench.goodput.metrics import LoadTrial, waterfall_of
from cotenant_lab.serving.arrival_bound import most_in_time
from cotenant_lab.serving.clairvoyant import clairvoyant_goodput, scaled, without_spread
from cotenant_lab.serving.simulated import ServedModel, Setting, arrivals_of, poisson

MS = 1_000_000
SETTING = Setting(2, 200 * MS, 50 * MS)


def times(base_ms: float, row_ms: float) -> RunTimes:
    cells = []
    for units in (1, 2):
        for rows in (1, 2, 4):
            took_ns = round((base_ms + row_ms * rows) * MS / units**0.8)
            cells.append(RunTime(units, rows, took_ns, took_ns * 11 // 10))
    return RunTimes(2, tuple(cells), 2)


MODELS = [ServedModel("short", times(1, 2), 12 * MS), ServedModel("long", times(2, 4), 24 * MS)]


def goodput(
    rate_per_s: float, *, waits: bool = True, min_fairness: float = 0.0, factor: float = 1.0
) -> tuple[float, float]:
    models = [ServedModel(model.name, scaled(model.times, factor), model.slo_ns) for model in MODELS]
    arrivals = arrivals_of({model.name: poisson(rate_per_s) for model in models}, models, SETTING)
    known = clairvoyant_goodput(models, arrivals, SETTING, min_fairness=min_fairness, waits=waits)
    return known, most_in_time(models, arrivals, SETTING)[0]


@pytest.mark.parametrize("rate_per_s", [40.0, 300.0, 800.0])
def test_schedule_is_within_the_fluid_bound_and_waiting_never_loses(rate_per_s: float) -> None:
    known, fluid = goodput(rate_per_s)
    assert 0 < known <= fluid
    assert goodput(rate_per_s, waits=False)[0] <= known
    assert goodput(rate_per_s, min_fairness=0.95)[0] <= known
    assert goodput(rate_per_s, factor=2.0)[0] <= known


def test_all_requests_of_a_low_load_are_in_time() -> None:
    arrivals = {"short": [60 * MS, 90 * MS], "long": [60 * MS, 150 * MS]}
    assert clairvoyant_goodput(MODELS, arrivals, SETTING, min_fairness=1.0) == 4 * 1000 / 200


def test_requests_that_come_together_share_a_run() -> None:
    """On one unit, four requests of 4 ms each alone take 9 ms together, within their objective of 12 ms."""
    model = ServedModel("short", times(1, 2), 12 * MS)
    setting = Setting(1, 200 * MS, 50 * MS)
    arrivals = {"short": [60 * MS] * 4}
    assert clairvoyant_goodput([model], arrivals, setting, min_fairness=1.0) == 4 * 1000 / 200


def test_exact_times_have_no_margin() -> None:
    assert all(time.high_ns == time.typical_ns for time in without_spread(MODELS[0].times).times)


def test_waterfall_has_the_loss_of_each_part() -> None:
    trial = LoadTrial("p", "poisson", 1.3, (), 1.0, 1.0, None, 0.1, waterfall={"device": 10.0, "front end": 8.0})
    steps = waterfall_of([trial, LoadTrial("p", "poisson", 1.0, (), 1.0, 1.0, None, 0.1)])
    assert [(step.part, step.lost_rps) for step in steps] == [
        ("device", 0.0), ("front end", 2.0), ("interference between runs", 8.0)
    ]  # fmt: skip
    assert waterfall_of([]) == []
