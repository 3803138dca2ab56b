"""How is `cotenant bench limit` shown? Shares that were asked for beside shares that were had."""

from __future__ import annotations

from rich.console import Console

from cotenant.apps.show import table
from cotenant.experiment.limit import LimitCase, LimitReport
from cotenant.experiment.limit_more import LEAST_PCT


def show_limit(console: Console, report: LimitReport) -> None:
    """`cotenant bench limit`."""
    columns = ["KIND", "BESIDE", "TARGET", "ACTUAL", "ERROR", "OSCILLATION", "NEIGHBOUR", "STALLED"]
    for title, cases in (
        (f"static shares, {report.seconds:.0f} s each", report.cases),
        ("the baseline: grid size, utilization", report.baseline),
    ):
        rows = [_row(case) for case in cases]
        console.print(table(title, columns, rows))
    rows = [
        [one.case, one.tenant, f"{one.target_pct:.0f}%", f"{one.actual_pct:.2f}%", f"{one.error_pct:.2f}"]
        for one in report.more
    ]
    console.print(table("others", ["CASE", "TENANT", "TARGET", "ACTUAL", "ERROR"], rows))
    console.print(
        f"error in points of the device: {report.error_pct_mean:.2f} in the mean, {report.error_pct_max:.2f} at most "
        f"({report.more_error_pct_max:.2f} in the others); the baseline's "
        f"{report.baseline_error_pct_mean:.2f} and {report.baseline_error_pct_max:.2f}"
    )
    console.print(
        f"oscillation over 100 ms, of kernels up to 1 ms: {report.oscillation_pct:.2f} at most, "
        f"{report.oscillation_pct_mean:.2f} in the mean; without a limit {report.unlimited_oscillation_pct:.2f} at most"
    )
    console.print(f"conserving and alone: {report.alone_ratio:.3f} of what it uses without a limit")
    console.print(
        f"a least share of {LEAST_PCT}% below one that is always busy: {report.least_pct:.2f}%; "
        f"another share acts within {report.resize_settle_ms:.0f} ms"
    )
    machine = report.machine
    console.print(
        f"the machine: {machine.processors} processors, load {machine.load_begin:.1f} to {machine.load_end:.1f}, "
        f"{machine.busy_pct:.0f}% busy, {machine.stolen_pct:.1f}% stolen"
    )


def _row(case: LimitCase) -> list[str]:
    return [
        case.kind,
        case.beside,
        f"{case.target_pct:.0f}%",
        f"{case.actual_pct:.2f}%",
        f"{case.error_pct:.2f}" + ("" if case.reachable else " (hardly in reach)"),
        f"{case.oscillation_pct:.2f}",
        f"{case.neighbour_pct:.1f}%",
        f"{case.stalled_pct:.1f}%",
    ]
