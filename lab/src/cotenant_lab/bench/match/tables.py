"""Terminal table of `cotenant-lab bench match`."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from cotenant_lab.bench.match.bench import MatchReport


def show_match(console: Console, report: MatchReport) -> None:
    """Print a row for each case, and the worst of them."""
    table = Table("", "size", "s", "again s", "round s", "few s", "MiB", "of best", "by", "scipy s", "MiB", box=None)
    for one in report.cases:
        seconds = (one.seconds, one.again_seconds, one.round_seconds, one.few_seconds)
        table.add_row(
            f"{one.shape}, {one.weight}",
            f"{one.size:,}",
            *(_number(number) for number in seconds),
            f"{one.peak_mib:.0f}",
            f"{one.vs_optimal:.5f}",
            one.optimal_by,
            _number(one.exact_seconds),
            "-" if one.exact_peak_mib is None else f"{one.exact_peak_mib:.0f}",
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
