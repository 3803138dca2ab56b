"""Terminal tables of study `dstack`."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from cotenant.cli.render.tables import table
from cotenant_lab.study.claim import show_claims
from cotenant_lab.study.dstack.report import ALL, DstackReport, MetricSpread
from cotenant_lab.study.dstack.run import POISSON


def show_dstack(console: Console, report: DstackReport) -> None:
    """Print the report of `cotenant-lab study dstack`."""
    _show_models(console, report)
    _show_over(console, report)
    _show_loads(console, report)
    if report.unshared_law:
        ratios = ", ".join(f"{count}: {spread.median:.2f}" for count, spread in report.unshared_law.items())
        console.print(Text(f"runs without shares, measured over the law, median by processes on an A100: {ratios}"))
    paper = report.paper
    text = f"{paper.source}, as published (other programs, real GPUs): up to {paper.throughput:g}x the throughput "
    text += f"and {paper.utilization:g}x the utilization of other modes, more than {paper.of_ideal:.0%} of an ideal one"
    console.print(Text(text))
    show_claims(console, report.claims)
    for target, met in report.met.items():
        console.print(Text(f"{target}: {'met' if met else 'missed'}", style="green" if met else "bold red"))


def _show_models(console: Console, report: DstackReport) -> None:
    columns = ["MODEL", "OBJECTIVE", "KNEE BY BATCH", "BY THE ANALYTICAL MODEL", "BEST FOR A ROW", "MAX ALONE"]
    rows: list[list[str | Text]] = [
        [
            model.name,
            f"{model.slo_ms:.1f} ms",
            _by_batch(model.knees_pct),
            _by_batch(model.fitted_knees_pct),
            f"{model.best_batch} rows at {model.best_share_pct} %",
            f"{model.alone_per_s:,.0f}/s",
        ]
        for model in report.models
    ]
    console.print(table(f"Models, as measured on a V100 (not measured: {', '.join(report.missing)})", columns, rows))
    console.print()


def _by_batch(knees: dict[int, int]) -> str:
    return ", ".join(f"{batch}: {knee} %" for batch, knee in knees.items())


def _show_over(console: Console, report: DstackReport) -> None:
    columns = ["OURS OVER", "MODELS", "IN TIME", "WITH OUR ADMISSION", "UTILIZATION"]
    rows: list[list[str | Text]] = [
        [
            result.mode,
            result.models,
            _times(result.throughput),
            _times(result.throughput_admitted),
            _times(result.utilization),
        ]
        for result in report.results
        if result.models == ALL or result.mode == "temporal"
    ]
    sizes = ", ".join(f"{count} of {size}" for size, count in report.combinations.items())
    title = f"Each at its best load, over combinations ({sizes}): median (quarter, three quarters)"
    console.print(table(title, columns, rows))
    console.print()


def _times(spread: MetricSpread) -> str:
    return f"{_short(spread.median)} ({_short(spread.quarter)}, {_short(spread.three_quarters)})"


def _spread(spread: MetricSpread) -> str:
    return f"{spread.median:.0%} ({spread.quarter:.0%}, {spread.three_quarters:.0%})"


def _short(value: float) -> str:
    return "never" if value > 1e6 else f"{value:.2f}x"


def _show_loads(console: Console, report: DstackReport) -> None:
    columns = ["LOAD", "MODE", "OF BOUND", "OF FAIR BOUND", "MISSED", "ADMITTED IN TIME", "USED", "FAIRNESS", "BATCH"]
    rows: list[list[str | Text]] = [
        [
            f"{load.load:.1f}{'' if load.rhythm == POISSON else ' ' + load.rhythm}",
            load.mode,
            f"{load.of_bound.median:.0%} ({load.of_bound.quarter:.0%}, {load.of_bound.three_quarters:.0%})",
            f"{load.of_fair_bound.median:.0%}",
            f"{load.missed.median:.0%}",
            f"{load.attainment_admitted.median:.1%}",
            f"{load.utilization.median:.0%}",
            f"{load.fairness.median:.2f}",
            f"{load.mean_batch:.1f}",
        ]
        for load in report.loads
    ]
    console.print(table("By load, as a fraction of the bound: medians", columns, rows))
    rivals = f"another policy is ahead in {report.rivals.ahead_part:.0%} of the combinations"
    console.print(
        f"At capacity, {_spread(report.of_ideal)} of an ideal scheduler that preempts runs; {rivals}, by at most "
        f"{report.rivals.ahead_by:.0%}."
    )
    console.print()
