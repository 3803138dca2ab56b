"""Output of `cotenant serve plan`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from rich.console import Console

from cotenant.cli.render.tables import table
from cotenant.serve.commands.plan import PlanResult
from cotenant.serve.model.plan import ModelPlan, ServePlan
from cotenant.serve.plan_format import plan_from_tree, plan_tree
from cotenant.serve.policy.what_if import BUSY, PlanForecast
from cotenant.units.instant import SECOND_NS
from cotenant.units.text import counted, round_duration


def show_planned(console: Console, planned: PlanResult, what_if: str) -> None:
    """Print the plan, the reasons for it, and the effect of the requested changes."""
    for name, why in planned.refused.items():
        _print(console, f"{name} cannot be served: {why}", style="yellow")
    if planned.unprofiled:
        names = ", ".join(planned.unprofiled)
        _print(
            console, f"not planned, because they have no profile: {names}; measure with: cotenant serve profile MODELS"
        )
    if not planned.now.plan.models:
        return
    if planned.assumed_rates:
        _print(console, f"no --rate was given: each model gets an equal part of {BUSY:.0%} of the device", style="dim")
    _show(console, planned.now, planned, "the plan")
    if planned.then is not None:
        _show(console, planned.then, planned, f"if {what_if}")
        for line in differences(planned.now, planned.then):
            _print(console, line)


def _show(console: Console, forecast: PlanForecast, planned: PlanResult, title: str) -> None:
    show_plan(console, forecast.plan, forecast.slos_ns, title, percent=planned.percent)
    sentence = (
        f"of {forecast.asked:,.0f} rows/s about {forecast.in_time:,.0f} would meet the objective (queueing estimate)"
    )
    _print(console, sentence + "\n", style="dim")


def show_plan(console: Console, plan: ServePlan, slos_ns: Mapping[str, int], title: str, *, percent: bool) -> None:
    """Print a row for each model, and the reasons below."""
    rows = []
    for model in plan.models:
        slo_ns = slos_ns.get(model.model, 0)
        part = model.rate / model.batch * model.units * model.expected_ns / SECOND_NS / plan.all_units
        rows.append(
            [
                model.model,
                round_duration(slo_ns) if slo_ns else "-",
                f"{model.rate:,.0f}",
                str(model.batch),
                f"{model.units}%" if percent else str(model.units),
                round_duration(model.expected_ns) if model.expected_ns else "-",
                str(model.runs),
                f"{part:.0%}",
                model.objective,
            ]
        )
    head = f"{title}: a session of {round_duration(plan.session_ns)}, {plan.used:.0%} of "
    head += "the GPU" if percent else counted(plan.all_units, "core")
    units = "SHARE" if percent else "CORES"
    columns = ["MODEL", "SLO", "ROWS/S", "BATCH", units, "RUN TIME", "RUNS", "OF DEVICE", "CHOSEN BY"]
    console.print(table(head, columns, rows))
    _print(console, plan.why)
    for model in plan.models:
        _print(console, f"  {model.model}: {model.why}")


def differences(now: PlanForecast, then: PlanForecast) -> list[str]:
    """Return the differences between two plans as sentences."""
    before = {model.model: model for model in now.plan.models}
    after = {model.model: model for model in then.plan.models}
    sentences = [f"{name}: removed" for name in before if name not in after]
    for name, model in after.items():
        changes = _changes(before[name], model) if name in before else ["new"]
        if changes:
            sentences.append(f"{name}: {', '.join(changes)}")
    sentences.append(f"device: {now.plan.used:.0%} -> {then.plan.used:.0%} taken")
    sentences.append(f"in time: {now.in_time:,.0f} -> {then.in_time:,.0f} rows/s")
    return sentences


def _changes(before: ModelPlan, after: ModelPlan) -> list[str]:
    pairs = {
        "batch": (str(before.batch), str(after.batch)),
        "units": (str(before.units), str(after.units)),
        "a run": (round_duration(before.expected_ns), round_duration(after.expected_ns)),
        "runs in a session": (str(before.runs), str(after.runs)),
        "rows/s": (f"{before.rate:,.0f}", f"{after.rate:,.0f}"),
    }
    return [f"{name} {first} -> {second}" for name, (first, second) in pairs.items() if first != second]


def show_running(console: Console, running: dict[str, Any], url: str) -> None:
    """Print the plan and the measurements of a running server."""
    plan = plan_from_tree(running["plan"])
    slos_ns = {model["model"]: model["slo_ns"] for model in running["models"]}
    percent = bool(running["percent"])
    if plan is None:
        _print(console, f"{url}: policy {running['policy']} has no plan, or none yet")
    else:
        show_plan(console, plan, slos_ns, f"{url}, policy {running['policy']}", percent=percent)
    rows = [
        [
            model["model"],
            "yes" if model["profiled"] else "no",
            f"{model['rate']:,.0f}",
            ", ".join(map(str, model["widths"])),
            str(model["knee_units"]),
            f"{model['slower_by_machine']:.2f}x",
            f"{model['slower_by_itself']:.2f}x",
        ]
        for model in running["models"]
    ]
    columns = ["MODEL", "PROFILED", "ROWS/S", "UNITS PER RUN", "KNEE", "MACHINE FACTOR", "MODEL FACTOR"]
    console.print(table("run times relative to the profiles", columns, rows))


def planned_json(planned: PlanResult) -> dict[str, Any]:
    """Return the plan as JSON."""
    return {
        **msgspec.structs.asdict(planned),
        "now": _tree(planned.now),
        "then": None if planned.then is None else _tree(planned.then),
        "differences": [] if planned.then is None else differences(planned.now, planned.then),
    }


def _tree(forecast: PlanForecast) -> dict[str, Any]:
    return {**msgspec.structs.asdict(forecast), "plan": plan_tree(forecast.plan)}


def _print(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style or None, markup=False, highlight=False)
