"""Terminal tables of `cotenant-lab bench limit`: target shares and actual shares."""

from __future__ import annotations

from rich.console import Console

from cotenant.cli.render.tables import table
from cotenant_lab.bench.limit.bench import LimitCase, LimitReport
from cotenant_lab.bench.limit.more_cases import MIN_SHARE_PCT


def show_limit(console: Console, report: LimitReport) -> None:
    """Print the report of `cotenant-lab bench limit`."""
    columns = ["KIND", "NEIGHBOUR", "TARGET", "ACTUAL", "ERROR", "OSCILLATION", "NEIGHBOUR USE", "STALLED"]
    for title, cases in (
        (f"static shares, {report.seconds:.0f} s each", report.cases),
        ("the baseline: grid size, utilization", report.baseline),
    ):
        rows = [_row(case) for case in cases]
        console.print(table(title, columns, rows))
    rows = [
        [case.case, case.tenant, f"{case.target_pct:.0f}%", f"{case.actual_pct:.2f}%", f"{case.error_pct:.2f}"]
        for case in report.more
    ]
    console.print(table("others", ["CASE", "TENANT", "TARGET", "ACTUAL", "ERROR"], rows))
    console.print(
        f"error in percentage points of the device: mean {report.error_pct_mean:.2f}, max {report.error_pct_max:.2f} "
        f"({report.more_error_pct_max:.2f} in the other cases); of the baseline: "
        f"mean {report.baseline_error_pct_mean:.2f}, max {report.baseline_error_pct_max:.2f}"
    )
    console.print(
        f"oscillation over 100 ms, kernels up to 1 ms: max {report.oscillation_pct:.2f}, "
        f"mean {report.oscillation_pct_mean:.2f}; without a limit max {report.unlimited_oscillation_pct:.2f}"
    )
    console.print(f"work-conserving and alone: {report.alone_ratio:.3f} of the use without a limit")
    console.print(
        f"minimum share of {MIN_SHARE_PCT}% while an online tenant is always busy: {report.min_share_pct:.2f}%; "
        f"a new share holds within {report.resize_settle_ms:.0f} ms"
    )
    machine = report.machine
    console.print(
        f"the machine: {machine.processors} processors, load {machine.load_begin:.1f} to {machine.load_end:.1f}, "
        f"{machine.busy_pct:.0f}% busy, {machine.stolen_pct:.1f}% stolen"
    )


def _row(case: LimitCase) -> list[str]:
    return [
        case.kind,
        case.neighbour,
        f"{case.target_pct:.0f}%",
        f"{case.actual_pct:.2f}%",
        f"{case.error_pct:.2f}" + ("" if case.reachable else " (barely reachable)"),
        f"{case.oscillation_pct:.2f}",
        f"{case.neighbour_pct:.1f}%",
        f"{case.stalled_pct:.1f}%",
    ]
