"""Terminal tables of study `predictor-node`."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from cotenant.cli.render.tables import table
from cotenant_lab.study.predictor_node.run import PredictorNodeReport, all_comparisons


def show_predictor_node(console: Console, report: PredictorNodeReport) -> None:
    """Print the report of `cotenant-lab study predictor-node`."""
    columns = [
        "PREDICTED",
        "MEASURED BY",
        "HELD OUT",
        "MEDIAN",
        "P90",
        "SIMPLER PREDICTORS (MEDIAN)",
        "WITHIN",
        "UP TO",
    ]
    rows: list[list[str | Text]] = [
        [
            comparison.name,
            comparison.source,
            f"{comparison.errors.n:,}",
            f"{comparison.errors.median:.1%}",
            f"{comparison.errors.p90:.1%}",
            "; ".join(f"{name} {errors.median:.1%}" for name, errors in comparison.baselines.items()),
            f"{comparison.coverage:.1%}",
            f"x{comparison.interval:.2f}",
        ]
        for comparison in all_comparisons(report)
    ]
    console.print(table("Relative errors on held-out measurements", columns, rows))
    knees = report.alone.knees
    console.print(
        Text(
            f"Knee: {knees.fitted_median:.0f} points of share from the measured one at the median, "
            f"{knees.fitted_within_10:.0%} of {knees.n} within 10 points"
        )
    )
    for model, (text, measured) in report.alone.analytical_knees.items():
        console.print(Text(f"Knee of {model} by its kernels alone: {text} %, measured {measured} %"))
    columns = ["LOAD OF", "WINDOW", "REQUESTS", "MEAN ERROR", "A CONSTANT", "THE LAST WINDOW", "WITHIN"]
    rows = [
        [
            one.trace,
            f"{one.window_s} s",
            f"{one.mean_requests:.1f}",
            f"{one.mean_error:.1%}",
            f"{one.constant_error:.1%}",
            f"{one.last_error:.1%}",
            f"{one.coverage:.1%}",
        ]
        for one in report.load
    ]
    console.print(table("Requests in the next window", columns, rows))
    missed = [target for target, met in report.met.items() if not met]
    for target in missed:
        console.print(Text(f"{target}: missed", style="bold red"))
    console.print(Text(f"{len(report.met) - len(missed)} of {len(report.met)} targets are met"))
