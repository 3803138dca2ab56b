"""Terminal tables of `cotenant-lab bench cold`."""

from __future__ import annotations

from rich.console import Console

from cotenant.cli.render.tables import table
from cotenant_lab.bench.cold.bench import ColdReport


def show_cold(console: Console, report: ColdReport) -> None:
    """Print the report of `cotenant-lab bench cold`."""
    headers = ["SERVICE", "P50", "P99", "OFFLINE VS PROFILED", "OFFLINE VS ALONE", "SETTLED"]
    rows = [
        [
            result.name,
            f"{result.online_p50_ratio:.3f}",
            f"{result.online_p99_ratio:.3f}",
            f"{result.offline_vs_profiled:.2f}",
            f"{result.offline_vs_alone:.0%}",
            f"{result.settled_s:.1f} s",
        ]
        for result in report.services
    ]
    console.print(table("without a profile, in simulated time", headers, rows))
    if report.live:
        live = [
            [
                result.name,
                f"{result.online_p50_ratio:.3f}",
                f"{result.online_p99_ratio:.3f}",
                f"{result.offline_vs_profiled:.2f}",
            ]
            for result in report.live
        ]
        console.print(table("on a software GPU", headers[:4], live))
    for name, why in report.live_left_out.items():
        console.print(f"not measured live: {name}: {why}", highlight=False)
    missed = [name for name, is_met in report.met.items() if not is_met]
    console.print(f"targets missed: {', '.join(missed) or 'none'}", highlight=False)
