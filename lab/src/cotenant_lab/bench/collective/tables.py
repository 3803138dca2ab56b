"""Terminal tables of `cotenant-lab bench collective`."""

from __future__ import annotations

from rich.console import Console

from cotenant.cli.render.tables import table
from cotenant_lab.bench.collective.bench import CollectiveReport


def show_collective(console: Console, report: CollectiveReport) -> None:
    """Print the report of `cotenant-lab bench collective`."""
    headers = ["SERVICES", "MODE", "NODE", "P50", "P99", "COLLECTIVES", "SPIN BY GATE", "SPINNING"]
    rows = [
        [
            result.pattern,
            result.mode,
            result.setting,
            f"{result.online_p50_ratio:.3f}",
            f"{result.online_p99_ratio:.3f}",
            f"{result.collectives_vs_alone:.0%}",
            f"{result.spin_ms_max:.2f} ms",
            f"{result.spin_part:.1%}",
        ]
        for result in report.modes
    ]
    console.print(table("a rank on each of two GPUs, in simulated time", headers, rows))
    disturbed = [
        [
            result.disturbance,
            f"{result.online_p99_ratio:.3f}",
            f"{result.spin_ms_max:.2f} ms",
            str(result.collectives_before),
            str(result.collectives_after),
            str(result.hangs),
        ]
        for result in report.disturbed
    ]
    names = ["RANK 1", "P99", "SPIN BY GATE", "COLLECTIVES BEFORE", "AFTER", "HANGS"]
    console.print(table("while one rank is disturbed", names, disturbed))
    missed = [name for name, is_met in report.met.items() if not is_met]
    console.print(f"targets missed: {', '.join(missed) or 'none'}", highlight=False)
