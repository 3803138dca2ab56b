"""Terminal tables of study `baselines`."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from cotenant.cli.render.tables import table
from cotenant_lab.study.baselines.run import BaselinesReport


def show_baselines(console: Console, report: BaselinesReport) -> None:
    """Print the report of `cotenant-lab study baselines`."""
    columns = ["BASELINE", "FIGURE", "PUBLISHED", "HERE, MEDIAN", "RANGE", "ERROR", "WORST", "SOURCE"]
    rows: list[list[str | Text]] = [
        [
            found.baseline,
            found.figure,
            f"{found.published[0]:g} to {found.published[1]:g}",
            f"{found.median:.3f}",
            f"{found.min:.3f} to {found.max:.3f}",
            f"{found.error:.1%}",
            f"{found.error_worst:.1%}",
            found.source,
        ]
        for found in report.ranges
    ]
    console.print(table("Baselines on workloads of their own papers", columns, rows, fold=True))
    modes = list(report.pairs[0].speeds) if report.pairs else []
    heads = ["PAIR", *(f"{mode.upper()}: {who}" for mode in modes for who in ("PRODUCTION", "OPPORTUNISTIC"))]
    rows = [[pair.name, *(f"{speed:.3f}" for mode in modes for speed in pair.speeds[mode])] for pair in report.pairs]
    console.print(table("Speeds over those alone", heads, rows))
    for target, met in report.met.items():
        console.print(Text(f"{target}: {'met' if met else 'missed'}", style="green" if met else "bold red"))
