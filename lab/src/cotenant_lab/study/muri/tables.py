"""Terminal tables of study `muri`."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.text import Text

from cotenant.cli.render.tables import table
from cotenant_lab.study.muri.report import MuriReport, PolicyResult

_HOUR_S: Final = 3600


def show_muri(console: Console, report: MuriReport) -> None:
    """Print the report of `cotenant-lab study muri`."""
    columns = ["POLICY", "MEAN JCT (h)", "REPLAYED", "ERROR", "MAKESPAN (h)", "REPLAYED", "ERROR", "STARTS", "REPLAYED"]
    title = f"{report.source}: measured and replayed"
    console.print(table(title, [*columns, "A JOB, MEDIAN", "FITTED HERE"], [_row(result) for result in report.results]))
    costs = report.costs
    console.print(Text(f"a start costs {costs.start_s:.1f} s; interleaved steps take {costs.longer:.2f} times as long"))
    for result in report.results:
        if result.bare_jct_error != result.jct_error:
            console.print(Text(f"{result.policy}, without the second factor: mean JCT {result.bare_jct_error:+.1%}"))
    console.print(
        Text("this replay implements the published rules; it uses neither our cluster controller nor our simulator")
    )
    for target, met in report.met.items():
        console.print(Text(f"{target}: {'met' if met else 'missed'}", style="green" if met else "bold red"))


def _row(result: PolicyResult) -> list[str | Text]:
    return [
        result.policy,
        f"{result.jct_s / _HOUR_S:.1f}",
        f"{result.replayed_jct_s / _HOUR_S:.1f}",
        f"{result.jct_error:+.1%}",
        f"{result.makespan_s / _HOUR_S:.1f}",
        f"{result.replayed_makespan_s / _HOUR_S:.1f}",
        f"{result.makespan_error:+.1%}",
        str(result.starts),
        str(result.replayed_starts),
        f"{result.job_error_median:.1%}",
        result.fitted,
    ]
