"""How does a server's plan look in a terminal?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from rich.console import Console

from cotenant.apps.serve_plan import Planned
from cotenant.apps.show import table
from cotenant.domain.instant import SECOND_NS
from cotenant.domain.serveplan import ModelPlan, ServePlan
from cotenant.format.quantity import counted, round_duration
from cotenant.format.serveplan import plan_of_tree, plan_tree
from cotenant.policy.schedule.what_if import BUSY, Foretold


def show_planned(console: Console, planned: Planned, what_if: str) -> None:
    """The plan, why it is so, and what would change."""
    for name, why in planned.refused.items():
        _print(console, f"{name} cannot be served: {why}", style="yellow")
    if planned.unprofiled:
        names = ", ".join(planned.unprofiled)
        _print(console, f"without a profile, so without a plan: {names}; measure by: cotenant serve profile MODELS")
    if not planned.now.plan.models:
        return
    if planned.assumed_rates:
        _print(console, f"no --rate is given: each model has an equal part of {BUSY:.0%} of the device", style="dim")
    _show(console, planned.now, planned, "the plan")
    if planned.then is not None:
        _show(console, planned.then, planned, f"if {what_if}")
        for line in differences(planned.now, planned.then):
            _print(console, line)


def _show(console: Console, foretold: Foretold, planned: Planned, title: str) -> None:
    show_plan(console, foretold.plan, foretold.slos_ns, title, percent=planned.percent)
    said = f"of {foretold.asked:,.0f} rows/s about {foretold.in_time:,.0f} would be in time (a queue's arithmetic)"
    _print(console, said + "\n", style="dim")


def show_plan(console: Console, plan: ServePlan, slos_ns: Mapping[str, int], title: str, *, percent: bool) -> None:
    """A line for each model, and the reasons below."""
    rows = []
    for one in plan.models:
        slo_ns = slos_ns.get(one.model, 0)
        part = one.rate / one.batch * one.units * one.expected_ns / SECOND_NS / plan.all_units
        rows.append(
            [
                one.model,
                round_duration(slo_ns) if slo_ns else "-",
                f"{one.rate:,.0f}",
                str(one.batch),
                f"{one.units}%" if percent else str(one.units),
                round_duration(one.expected_ns) if one.expected_ns else "-",
                str(one.runs),
                f"{part:.0%}",
                one.objective,
            ]
        )
    head = f"{title}: a session of {round_duration(plan.session_ns)}, {plan.used:.0%} of "
    head += "the GPU" if percent else counted(plan.all_units, "core")
    units = "SHARE" if percent else "CORES"
    columns = ["MODEL", "SLO", "ROWS/S", "BATCH", units, "A RUN", "RUNS", "OF DEVICE", "CHOSEN BY"]
    console.print(table(head, columns, rows))
    _print(console, plan.why)
    for one in plan.models:
        _print(console, f"  {one.model}: {one.why}")


def differences(now: Foretold, then: Foretold) -> list[str]:
    """What changed, in words."""
    before = {one.model: one for one in now.plan.models}
    after = {one.model: one for one in then.plan.models}
    said = [f"{name}: no longer there" for name in before if name not in after]
    for name, one in after.items():
        changes = _changes(before[name], one) if name in before else ["new"]
        if changes:
            said.append(f"{name}: {', '.join(changes)}")
    said.append(f"device: {now.plan.used:.0%} -> {then.plan.used:.0%} taken")
    said.append(f"in time: {now.in_time:,.0f} -> {then.in_time:,.0f} rows/s")
    return said


def _changes(one: ModelPlan, two: ModelPlan) -> list[str]:
    pairs = {
        "batch": (str(one.batch), str(two.batch)),
        "units": (str(one.units), str(two.units)),
        "a run": (round_duration(one.expected_ns), round_duration(two.expected_ns)),
        "runs in a session": (str(one.runs), str(two.runs)),
        "rows/s": (f"{one.rate:,.0f}", f"{two.rate:,.0f}"),
    }
    return [f"{name} {first} -> {second}" for name, (first, second) in pairs.items() if first != second]


def show_running(console: Console, told: dict[str, Any], url: str) -> None:
    """What a running server says."""
    plan = plan_of_tree(told["plan"])
    slos_ns = {one["model"]: one["slo_ns"] for one in told["models"]}
    percent = bool(told["percent"])
    if plan is None:
        _print(console, f"{url}: policy {told['policy']} makes no plan, or has not made one yet")
    else:
        show_plan(console, plan, slos_ns, f"{url}, policy {told['policy']}", percent=percent)
    rows = [
        [
            one["model"],
            "yes" if one["profiled"] else "no",
            f"{one['rate']:,.0f}",
            ", ".join(map(str, one["widths"])),
            str(one["knee_units"]),
            f"{one['slower_by_machine']:.2f}x",
            f"{one['slower_by_itself']:.2f}x",
        ]
        for one in told["models"]
    ]
    columns = ["MODEL", "PROFILED", "ROWS/S", "UNITS OF A RUN", "KNEE", "MACHINE TAKES", "MODEL TAKES"]
    console.print(table("what it believes, against what was measured", columns, rows))


def planned_json(planned: Planned) -> dict[str, Any]:
    """The same for machines."""
    return {
        **msgspec.structs.asdict(planned),
        "now": _tree(planned.now),
        "then": None if planned.then is None else _tree(planned.then),
        "differences": [] if planned.then is None else differences(planned.now, planned.then),
    }


def _tree(foretold: Foretold) -> dict[str, Any]:
    return {**msgspec.structs.asdict(foretold), "plan": plan_tree(foretold.plan)}


def _print(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style or None, markup=False, highlight=False)
