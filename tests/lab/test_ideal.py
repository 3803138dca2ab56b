"""The ideal scheduler: complete at low load, preempting, slowed by others, and never above what is offered."""

import msgspec
import pytest

from cotenant.serve.model.run_times import RunTime, RunTimes
from cotenant_lab.serving.ideal import ideal_goodput
from cotenant_lab.serving.simulated import ServedModel, Setting, arrivals_of, poisson

MS = 1_000_000
SETTING = Setting(100, 400 * MS, 100 * MS, contention=1.0)


def model(name: str, units: int, run_ms: int, slo_ms: int) -> ServedModel:
    cells = (RunTime(units // 2, 1, 2 * run_ms * MS, 0), RunTime(units, 1, run_ms * MS, 0))
    return ServedModel(name, RunTimes(100, cells, units), slo_ms * MS)


@pytest.mark.parametrize("rate_per_s", [20.0, 200.0, 2000.0])
def test_goodput_is_at_most_what_is_offered_and_grows_with_the_device(rate_per_s: float) -> None:
    models = [model("slim", 20, 10, 40), model("broad", 100, 5, 20)]
    arrivals = arrivals_of({each.name: poisson(rate_per_s) for each in models}, models, SETTING)
    first, last = SETTING.warm_ns, SETTING.warm_ns + SETTING.for_ns
    offered = sum(first <= when < last for instants in arrivals.values() for when in instants) / 0.4
    goodput = ideal_goodput(models, arrivals, SETTING)
    assert 0 < goodput <= offered
    assert ideal_goodput(models, arrivals, msgspec.structs.replace(SETTING, contention=2.0)) <= goodput
    if rate_per_s == 20.0:
        assert goodput >= 0.9 * offered


def test_an_urgent_run_takes_units_from_a_long_one() -> None:
    """Without preemption, one of the two requests would be late: the long run has the device when the other arrives."""
    models = [model("long", 100, 50, 80), model("short", 100, 5, 12)]
    arrivals = {"long": [110 * MS], "short": [120 * MS]}
    assert ideal_goodput(models, arrivals, SETTING) * 0.4 == pytest.approx(2)
    contended = msgspec.structs.replace(SETTING, contention=1.5)
    assert ideal_goodput(models, arrivals, contended) * 0.4 <= 2
