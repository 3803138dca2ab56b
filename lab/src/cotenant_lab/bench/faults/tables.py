"""Terminal tables of `cotenant-lab bench faults`: one row per kind of fault and sharing mode."""

from __future__ import annotations

from rich.console import Console

from cotenant.cli.render.tables import table
from cotenant_lab.bench.faults.bench import FaultsReport


def show_faults(console: Console, report: FaultsReport) -> None:
    """Print the report of `cotenant-lab bench faults`."""
    for sharing in ("slices", "mps"):
        rows = [
            [
                result.kind,
                result.about,
                f"{result.online_lost_requests} in {result.lost_in} of {result.times}" if result.lost_in else "none",
                f"{result.recovery_ms_p50:.0f}",
                f"{result.recovery_ms_p99:.0f}",
                result.state_after,
            ]
            for result in report.results
            if result.sharing == sharing
        ]
        title = "sharing by MPS" if sharing == "mps" else "sharing by time slices"
        console.print(table(title, ["FAULT", "", "REQUESTS LOST", "RECOVERY P50 MS", "P99", "STATE"], rows, fold=True))
    excuses = {result.excuse: result.kind for result in report.results if result.excuse and result.online_lost_requests}
    for excuse in excuses:
        kinds = ", ".join(dict.fromkeys(result.kind for result in report.results if result.excuse == excuse))
        console.print(f"{kinds}: {excuse}")
    console.print(f"requests lost without an excuse: {report.unexcused_lost_requests}")
    for name, met in report.met.items():
        console.print(f"{'met' if met else 'MISSED'}: {name}", style="" if met else "bold red", highlight=False)
