"""How is `cotenant bench faults` shown? A row for each kind of fault and way to share."""

from __future__ import annotations

from rich.console import Console

from cotenant.apps.show import table
from cotenant.experiment.faults.bench import FaultsReport


def show_faults(console: Console, report: FaultsReport) -> None:
    """`cotenant bench faults`."""
    for sharing in ("slices", "mps"):
        rows = [
            [
                one.kind,
                one.about,
                f"{one.online_lost_requests} in {one.lost_in} of {one.times}" if one.lost_in else "none",
                f"{one.recovery_ms_p50:.0f}",
                f"{one.recovery_ms_p99:.0f}",
                one.state_after,
            ]
            for one in report.figures
            if one.sharing == sharing
        ]
        title = "sharing by MPS" if sharing == "mps" else "sharing by time slices"
        console.print(
            table(title, ["FAULT", "", "REQUESTS LOST", "WELL AGAIN P50 MS", "P99", "STATE"], rows, fold=True)
        )
    excuses = {one.excuse: one.kind for one in report.figures if one.excuse and one.online_lost_requests}
    for excuse in excuses:
        kinds = ", ".join(dict.fromkeys(one.kind for one in report.figures if one.excuse == excuse))
        console.print(f"{kinds}: {excuse}")
    console.print(f"requests lost that no hardware would lose: {report.unexcused_lost_requests}")
