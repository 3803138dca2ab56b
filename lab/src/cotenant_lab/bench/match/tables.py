"""Terminal table of `cotenant-lab bench match`."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from cotenant_lab.bench.match.bench import MatchReport


def show_match(console: Console, report: MatchReport) -> None:
    """Print a row for each case, and the worst of them."""
    table = Table("", "size", "s", "again s", "round s", "few s", "MiB", "of best", "by", "scipy s", "MiB", box=None)
    for case in report.cases:
        seconds = (case.seconds, case.again_seconds, case.round_seconds, case.few_seconds)
        table.add_row(
            f"{case.shape}, {case.weight}",
            f"{case.size:,}",
            *(_number(number) for number in seconds),
            f"{case.peak_mib:.0f}",
            f"{case.vs_optimal:.5f}",
            case.optimal_by,
            _number(case.exact_seconds),
            "-" if case.exact_peak_mib is None else f"{case.exact_peak_mib:.0f}",
        )
    console.print(table)
    console.print(
        f"minimum fraction of the optimum: {report.structured_vs_optimal:.5f} by kind, "
        f"{report.distinct_vs_optimal:.5f} distinct"
    )
    for name, met in report.met.items():
        console.print(f"{'met' if met else 'MISSED'}: {name}", style="" if met else "bold red", highlight=False)


def _number(number: float | None) -> str:
    return "-" if number is None else f"{number:.3f}"
