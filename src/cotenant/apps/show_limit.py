"""How is `cotenant bench limit` shown? Shares that were asked for beside shares that were had."""

from __future__ import annotations

from rich.console import Console

from cotenant.apps.show import table
from cotenant.experiment.limit import LimitCase, LimitReport


def show_limit(console: Console, report: LimitReport) -> None:
    """`cotenant bench limit`."""
    columns = ["KIND", "BESIDE", "TARGET", "ACTUAL", "ERROR", "OSCILLATION", "NEIGHBOUR"]
    for title, cases in (("static shares", report.cases), ("the baseline: grid size, utilization", report.baseline)):
        rows = [_row(case) for case in cases]
        console.print(table(f"{title}, {report.seconds:.0f} s each", columns, rows))
    console.print(
        f"error in points of the device: {report.error_pct_mean:.2f} in the mean, {report.error_pct_max:.2f} at most; "
        f"the baseline's {report.baseline_error_pct_mean:.2f} and {report.baseline_error_pct_max:.2f}"
    )
    console.print(f"oscillation over 100 ms, of kernels up to 1 ms: {report.oscillation_pct:.2f} at most")
    console.print(f"conserving and alone: {report.alone_ratio:.3f} of what it uses without a limit")


def _row(case: LimitCase) -> list[str]:
    return [
        case.kind,
        case.beside,
        f"{case.target_pct:.0f}%",
        f"{case.actual_pct:.2f}%",
        f"{case.error_pct:.2f}" if case.reachable else "out of reach",
        f"{case.oscillation_pct:.2f}",
        f"{case.neighbour_pct:.1f}%",
    ]
