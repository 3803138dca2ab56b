"""Terminal tables of `cotenant-lab bench goodput`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from cotenant_lab.bench.goodput.bench import GoodputReport
from cotenant_lab.bench.goodput.metrics import GoodputCell, PolicyGoodput


def show_goodput(console: Console, report: GoodputReport) -> None:
    """Print goodput by load for each kind of arrivals, then the ratios."""
    for model in report.models:
        alone = f"alone p50 {model.solo_p50_ms:.2f} ms, p99 {model.solo_p99_ms:.2f} ms"
        console.print(f"{model.name}: {alone}; SLO {model.slo_ms:.1f} ms")
    console.print(f"capacity {report.capacity_rps:.1f} requests/s: {report.capacity_from}")
    console.print(f"bound {report.bound_rps:.1f} requests/s, from measured run times")
    loads = sorted({cell.load for cell in report.cells})
    for arrival in dict.fromkeys(cell.arrival for cell in report.cells):
        console.print(f"answered in time per second, {arrival}, by part of the capacity:")
        table = Table("policy", box=None)
        for name in (*(f"{load:g}" for load in loads), "hold", "/bound", "/default", "kept", "fair", "sim"):
            table.add_column(name, justify="right", no_wrap=True)
        for policy in report.policies:
            if policy.arrival == arrival:
                cells = [cell for cell in report.cells if (cell.policy, cell.arrival) == (policy.policy, arrival)]
                table.add_row(policy.policy, *_row(policy, sorted(cells, key=lambda model: model.load)))
        console.print(table)
    console.print(
        "hold: goodput at the highest load over the best. /default: at 1.3 of the capacity and more. kept: fraction of "
        "admitted requests answered in time. Each is the minimum over the loads. sim: simulated goodput at the highest "
        "load, with measured run times and no other costs."
    )
    console.print(f"{report.ours}, at its best load: {report.goodput_vs_capacity:.2f} of the capacity in time.")
    for cell in _ours_at_highest_load(report):
        cost = f"sending took {cell.send_core_part:.0%} of a core and the server's front end {cell.front_core_part:.0%}"
        result = f"{cell.goodput_vs_left_bound:.2f} of the bound for the remaining core time at the current speed"
        console.print(f"At {cell.load:g} of the capacity, {cell.arrival}, {cost}: in time, {result}.")
    ratios = ", ".join(f"{load}: {ratio:.2f}" for load, ratio in report.vs_bound.items())
    console.print(f"{report.ours} over the most that any schedule answers in time, by part of the capacity: {ratios}")
    for step in report.waterfall:
        console.print(f"  {step.part}: {step.goodput_rps:.1f} requests/s, lost {step.lost_rps:.1f}")
    for target, met in report.met.items():
        console.print(f"{target}: {'met' if met else 'missed'}")
    late = sum(cell.late_sends for cell in report.cells)
    offered = sum(cell.offered for cell in report.cells)
    console.print(
        f"The sender was more than 1 ms late with {late} of {offered} requests; latencies include that delay."
    )


def _ours_at_highest_load(report: GoodputReport) -> list[GoodputCell]:
    """Return our cells at the highest load for which front end and sender share the cores with runs."""
    highest = max(cell.load for cell in report.cells)
    ours = [cell for cell in report.cells if (cell.policy, cell.load) == (report.ours, highest)]
    return [cell for cell in ours if cell.goodput_vs_left_bound is not None]


def _row(policy: PolicyGoodput, cells: Sequence[GoodputCell]) -> list[str]:
    return [
        *(f"{cell.goodput_rps:.0f}" for cell in cells),
        f"{policy.goodput_hold:.2f}",
        f"{policy.goodput_vs_bound:.2f}",
        _number(policy.goodput_vs_default, 2),
        f"{policy.slo_attainment_admitted:.3f}",
        f"{policy.fairness:.2f}",
        _number(cells[-1].simulated_rps, 0),
    ]


def _number(number: float | None, digits: int) -> str:
    return "-" if number is None else f"{number:.{digits}f}"
