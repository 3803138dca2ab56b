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
    console.print(table(title, [*columns, "A JOB, MEDIAN", "FITTED HERE"], [_row(one) for one in report.results]))
    costs = report.costs
    console.print(Text(f"a start costs {costs.start_s:.1f} s; interleaved steps take {costs.longer:.2f} times as long"))
    for one in report.results:
        if one.bare_jct_error != one.jct_error:
            console.print(Text(f"{one.policy}, without the second factor: mean JCT {one.bare_jct_error:+.1%}"))
    console.print(
        Text("this replay implements the published rules; it uses neither our cluster controller nor our simulator")
    )
    for target, met in report.met.items():
        console.print(Text(f"{target}: {'met' if met else 'missed'}", style="green" if met else "bold red"))


def _row(one: PolicyResult) -> list[str | Text]:
    return [
        one.policy,
        f"{one.jct_s / _HOUR_S:.1f}",
        f"{one.replayed_jct_s / _HOUR_S:.1f}",
        f"{one.jct_error:+.1%}",
        f"{one.makespan_s / _HOUR_S:.1f}",
        f"{one.replayed_makespan_s / _HOUR_S:.1f}",
        f"{one.makespan_error:+.1%}",
        str(one.starts),
        str(one.replayed_starts),
        f"{one.job_error_median:.1%}",
        one.fitted,
    ]
