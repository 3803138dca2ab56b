"""Terminal tables of study `dstack`."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from cotenant.cli.render.tables import table
from cotenant_lab.study.dstack.report import ALL, DstackReport, MetricSpread
from cotenant_lab.study.dstack.run import POISSON


def show_dstack(console: Console, report: DstackReport) -> None:
    """Print the report of `cotenant-lab study dstack`."""
    _show_models(console, report)
    _show_over(console, report)
    _show_loads(console, report)
    if report.unshared_law:
        ratios = ", ".join(f"{count}: {one.median:.2f}" for count, one in report.unshared_law.items())
        console.print(Text(f"runs without shares, measured over the law, median by processes on an A100: {ratios}"))
    paper = report.paper
    text = f"{paper.source}, as published (other programs, real GPUs): up to {paper.throughput:g}x the throughput "
    text += f"and {paper.utilization:g}x the utilization of other modes, more than {paper.of_ideal:.0%} of an ideal one"
    console.print(Text(text))
    for target, met in report.met.items():
        console.print(Text(f"{target}: {'met' if met else 'missed'}", style="green" if met else "bold red"))


def _show_models(console: Console, report: DstackReport) -> None:
    columns = ["MODEL", "OBJECTIVE", "KNEE BY BATCH", "BY THE ANALYTICAL MODEL", "BEST FOR A ROW", "MAX ALONE"]
    rows: list[list[str | Text]] = [
        [
            one.name,
            f"{one.slo_ms:.1f} ms",
            _by_batch(one.knees_pct),
            _by_batch(one.fitted_knees_pct),
            f"{one.best_batch} rows at {one.best_share_pct} %",
            f"{one.alone_per_s:,.0f}/s",
        ]
        for one in report.models
    ]
    console.print(table(f"Models, as measured on a V100 (not measured: {', '.join(report.missing)})", columns, rows))
    console.print()


def _by_batch(knees: dict[int, int]) -> str:
    return ", ".join(f"{batch}: {knee} %" for batch, knee in knees.items())


def _show_over(console: Console, report: DstackReport) -> None:
    columns = ["OURS OVER", "MODELS", "IN TIME", "WITH OUR ADMISSION", "UTILIZATION"]
    rows: list[list[str | Text]] = [
        [one.mode, one.models, _times(one.throughput), _times(one.throughput_admitted), _times(one.utilization)]
        for one in report.results
        if one.models == ALL or one.mode == "temporal"
    ]
    sizes = ", ".join(f"{count} of {size}" for size, count in report.combinations.items())
    title = f"Each at its best load, over combinations ({sizes}): median (quarter, three quarters)"
    console.print(table(title, columns, rows))
    console.print()


def _times(one: MetricSpread) -> str:
    return f"{_short(one.median)} ({_short(one.quarter)}, {_short(one.three_quarters)})"


def _short(value: float) -> str:
    return "never" if value > 1e6 else f"{value:.2f}x"


def _show_loads(console: Console, report: DstackReport) -> None:
    columns = ["LOAD", "MODE", "OF BOUND", "OF FAIR BOUND", "MISSED", "ADMITTED IN TIME", "USED", "FAIRNESS", "BATCH"]
    rows: list[list[str | Text]] = [
        [
            f"{one.load:.1f}{'' if one.rhythm == POISSON else ' ' + one.rhythm}",
            one.mode,
            f"{one.of_bound.median:.0%} ({one.of_bound.quarter:.0%}, {one.of_bound.three_quarters:.0%})",
            f"{one.of_fair_bound.median:.0%}",
            f"{one.missed.median:.0%}",
            f"{one.attainment_admitted.median:.1%}",
            f"{one.utilization.median:.0%}",
            f"{one.fairness.median:.2f}",
            f"{one.mean_batch:.1f}",
        ]
        for one in report.loads
    ]
    console.print(table("By load, as a fraction of the bound: medians", columns, rows))
    console.print()
