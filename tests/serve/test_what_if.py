"""Plans without a server follow their inputs, and `--what-if` changes what it names."""

from typing import Any

import pytest

from cotenant.cli.render.serve_plan import differences
from cotenant.errors import ConfigError
from cotenant.serve.commands.plan import PlanInputs, apply_change, parse_rates, plan_forecast, queues_of
from cotenant.serve.model.event import ModelSpec
from cotenant.serve.model.run_times import RunTime, RunTimes
from cotenant.serve.policy.what_if import BUSY, default_rates

MILLISECOND_NS = 1_000_000


def times(row_ns: int) -> RunTimes:
    cells = [(units, rows) for units in (1, 2, 4) for rows in (1, 2, 4, 8)]
    return RunTimes(
        4, tuple(RunTime(units, rows, ns := row_ns // 4 + row_ns * rows // units, 2 * ns) for units, rows in cells), 4
    )


def plan_inputs(**rates: float) -> PlanInputs:
    names = {"small": MILLISECOND_NS, "large": 8 * MILLISECOND_NS}
    specs = tuple(ModelSpec(name, "1", "t", (), (), 8, slo_ns=200 * MILLISECOND_NS) for name in names)
    return PlanInputs(specs, {name: times(row_ns) for name, row_ns in names.items()}, rates, 4)


def models(forecast: Any) -> dict[str, Any]:
    return {model.model: model for model in forecast.plan.models}


def test_higher_rate_uses_more_of_the_device() -> None:
    few = plan_forecast(plan_inputs(small=100, large=20))
    many = plan_forecast(apply_change(plan_inputs(small=100, large=20), "large.rate=200"))
    assert few.plan.used < many.plan.used
    assert few.in_time == pytest.approx(120, rel=0.02)
    assert models(many)["large"].rate == 200
    assert any(line.startswith("large:") and "rows/s 20 -> 200" in line for line in differences(few, many))


def test_plan_with_fewer_units_or_models() -> None:
    inputs = plan_inputs(small=100, large=20)
    half = plan_forecast(apply_change(inputs, "units=2"))
    assert half.plan.all_units == 2
    assert all(model.units <= 2 for model in half.plan.models)
    alone = plan_forecast(apply_change(inputs, "without=small"))
    assert list(models(alone)) == ["large"]
    assert "small: removed" in differences(plan_forecast(inputs), alone)


@pytest.mark.parametrize("slo_ms", [400, 100, 40, 20])
def test_planned_runs_fit_into_the_changed_objective(slo_ms: int) -> None:
    forecast = plan_forecast(apply_change(plan_inputs(large=100), f"large.slo={slo_ms}ms"))
    assert forecast.slos_ns["large"] == slo_ms * MILLISECOND_NS
    assert (
        2 * models(forecast)["large"].expected_ns <= slo_ms * MILLISECOND_NS
    )  # the 99th percentile is twice the median


def test_default_rates_use_the_device_in_equal_parts() -> None:
    queues = queues_of(plan_inputs())
    rates = default_rates(queues, 4)
    busy = 0.0
    for queue in queues:
        best_ns = min(units * queue.expected_ns(rows, units) / rows for units in queue.widths for rows in (1, 2, 4, 8))
        busy += rates[queue.spec.name] * best_ns / 4e9
    assert busy == pytest.approx(BUSY, rel=0.01)
    assert rates["small"] == pytest.approx(8 * rates["large"], rel=0.01)


@pytest.mark.parametrize(
    "text", ["x", "=3", "large.slo=", "large.slo=fast", "large.batch=3", "nobody.rate=1", "units=x"]
)
def test_invalid_what_if_change_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="--what-if"):
        apply_change(plan_inputs(), text)


def test_rates_are_parsed_by_model() -> None:
    assert parse_rates(["a=1.5", "b=2"]) == {"a": 1.5, "b": 2}
    for text in ("a", "a=", "a=x", "a=-1", "a=inf", "a=nan"):
        with pytest.raises(ConfigError, match="--rate"):
            parse_rates([text])
