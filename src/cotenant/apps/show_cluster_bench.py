"""How does `cotenant bench cluster` look in a terminal?"""

from __future__ import annotations

from rich.console import Console

from cotenant.apps.show import table
from cotenant.experiment.cluster_bench import ClusterBench
from cotenant.format.quantity import round_size


def show_cluster_bench(console: Console, report: ClusterBench) -> None:
    """A row for each size, then what is asked of the largest."""
    columns = ("GPUS", "JOBS", "REPORTS", "STARTED", "SECONDS", "CPU", "PEAK", "ROUNDS", "ROUND P50", "P99", "MAX")
    rows = [
        (
            f"{size.gpus:,}",
            f"{size.jobs:,}",
            f"{size.reports:,}",
            f"{size.started:,}",
            f"{size.seconds:.1f}",
            f"{size.cpu_seconds:.1f} s",
            round_size(size.peak_bytes),
            f"{size.rounds}",
            f"{size.round_ms_p50:.1f} ms",
            f"{size.round_ms_p99:.1f} ms",
            f"{size.round_ms_max:.1f} ms",
        )
        for size in report.sizes
    ]
    console.print(table(f"a cluster's brain and its world, {report.sizes[0].hours:.0f} h", columns, rows))
    console.print(f"growth exponent {report.growth_exponent:.2f}", highlight=False)
    for name, met in report.met.items():
        console.print(f"{'met' if met else 'MISSED'}: {name}", style="" if met else "bold red", highlight=False)
