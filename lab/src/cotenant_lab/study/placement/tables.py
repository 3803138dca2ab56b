"""Terminal tables of study `placement-node`."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from cotenant.cli.render.tables import table
from cotenant_lab.study.placement.report import PlacementReport


def show_placement(console: Console, report: PlacementReport) -> None:
    """Print the report of `cotenant-lab study placement-node`."""
    columns = ["MIXES", "BY", "POLICY", "DONE BY A TENANT", "BY ITS TRAININGS", "BY THE WORST", "OBJECTIVES MISSED"]
    rows: list[list[str | Text]] = []
    for result in report.results:
        for number, (policy, metrics) in enumerate(result.policies.items()):
            first = [f"{result.mixes} x {result.name}", result.source] if not number else ["", ""]
            offline = f"{metrics.offline:.1%}" if metrics.offline else ""
            rows.append(
                [*first, policy, f"{metrics.goodput:.1%}", offline, f"{metrics.worst:.1%}", str(metrics.broken)]
            )
    console.print(table("Work done, relative to alone", columns, rows))
    columns = ["OFFLINE UNDER MPS", "PAIRS", "ITS SMS", "DONE BY A TRAINING", "P99 OVER ALONE", "OBJECTIVES MISSED"]
    caps = report.caps
    rows = [
        [name, str(caps.pairs), sms, f"{caps_result.offline:.1%}", f"x{caps_result.p99:.2f}", str(caps_result.broken)]
        for name, sms, caps_result in (
            ("the gate alone", "all", caps.free),
            ("and what online leaves", f"{caps.percent:.0f} %", caps.capped),
        )
    ]
    console.print(table("Medians", columns, rows))
    missed = [target for target, met in report.met.items() if not met]
    for target in missed:
        console.print(Text(f"{target}: missed", style="bold red"))
    console.print(Text(f"{len(report.met) - len(missed)} of {len(report.met)} targets are met"))
