"""How is the bench of goodput shown to people?"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from cotenant.experiment.goodput.bench import GoodputReport


def show_goodput(console: Console, report: GoodputReport) -> None:
    """For each kind of arrivals a table of goodput by load, then what it means for ours."""
    for one in report.models:
        console.print(
            f"{one.name}: alone p50 {one.solo_p50_ms:.2f} ms, p99 {one.solo_p99_ms:.2f}; SLO {one.slo_ms:.1f}"
        )
    console.print(f"capacity {report.capacity_rps:.1f} requests/s: {report.capacity_from}")
    loads = sorted({one.load for one in report.cells})
    for arrival in dict.fromkeys(one.arrival for one in report.cells):
        table = Table(f"in time/s, {arrival}", box=None)
        for load in loads:
            table.add_column(f"{load:g}", justify="right")
        for name in ("hold", "of bound", "x default", "attained", "fair"):
            table.add_column(name, justify="right")
        for policy in report.policies:
            if policy.arrival != arrival:
                continue
            mine = {
                one.load: one.goodput_rps
                for one in report.cells
                if (one.policy, one.arrival) == (policy.policy, arrival)
            }
            table.add_row(
                policy.policy,
                *(f"{mine[load]:.0f}" for load in loads),
                f"{policy.goodput_hold:.2f}",
                *(_number(number) for number in (policy.goodput_vs_bound, policy.goodput_vs_default)),
                f"{policy.slo_attainment_admitted:.3f}",
                f"{policy.fairness:.2f}",
            )
        console.print(table)
    console.print(
        "hold: at the highest load over the best; x default: from 1.3 of the capacity on; each the least of all."
    )
    late = sum(one.late_sends for one in report.cells)
    offered = sum(one.offered for one in report.cells)
    console.print(
        f"The sender was more than 1 ms late with {late} of {offered} requests; latencies count from before that."
    )


def _number(number: float | None) -> str:
    return "-" if number is None else f"{number:.2f}"
