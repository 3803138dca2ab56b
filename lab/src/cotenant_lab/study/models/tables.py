"""Output of `cotenant-lab study models`."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from cotenant.cli.render.tables import table
from cotenant_lab.study.models.run import TARGETS, GroupError, ModelsReport


def show_models(console: Console, report: ModelsReport) -> None:
    """Print the errors by source, GPU and operator, the baselines and the targets."""
    columns = ["CASES", "N", "MEDIAN", "P90", "WITHIN INTERVAL", "ESTIMATED/MEASURED"]
    console.print(table("Judged latencies by source", columns, [_row(group) for group in report.by_source]))
    console.print(table("Judged latencies by GPU", columns, [_row(group) for group in report.by_gpu]))
    rows: list[list[str | Text]] = [
        [error.family, error.gpu, str(error.n), f"{error.error_median:.1%}", f"{error.ratio_median:.2f}"]
        for error in report.operators
    ]
    console.print(table("Operators timed alone", ["OPERATOR", "GPU", "N", "MEDIAN", "ESTIMATED/MEASURED"], rows))
    lines: list[list[str | Text]] = [["estimate", f"{report.error_median:.1%}", f"{report.error_p90:.1%}"]]
    for name, errors in report.baselines.items():
        lines.append([f"{name} only", f"{errors.median:.1%}", f"{errors.p90:.1%}"])
    console.print(table("All judged latencies", ["METHOD", "MEDIAN", "P90"], lines))
    for name, goal in TARGETS.items():
        value = getattr(report, name)
        console.print(Text(f"{name}: {value:.3f} (target {goal:g}): {'met' if report.met[name] else 'missed'}"))


def _row(group: GroupError) -> list[str | Text]:
    errors = group.errors
    return [
        group.group,
        str(errors.n),
        f"{errors.median:.1%}",
        f"{errors.p90:.1%}",
        f"{group.coverage:.0%}",
        f"{group.ratio_median:.2f}",
    ]
