"""How does the lab's judgement of the predictor look in a terminal?"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from cotenant.apps.show import table
from cotenant.experiment.lab.predictor import Report, every_judgement


def show_predictor(console: Console, report: Report) -> None:
    """`cotenant lab predictor-node`."""
    columns = ["FORETOLD", "MEASURED BY", "HELD OUT", "MEDIAN", "P90", "SIMPLER GUESSES (MEDIAN)", "WITHIN", "UP TO"]
    rows: list[list[str | Text]] = [
        [
            one.name,
            one.source,
            f"{one.errors.n:,}",
            f"{one.errors.median:.1%}",
            f"{one.errors.p90:.1%}",
            "; ".join(f"{name} {errors.median:.1%}" for name, errors in one.baselines.items()),
            f"{one.coverage:.1%}",
            f"x{one.interval:.2f}",
        ]
        for one in every_judgement(report)
    ]
    console.print(table("Relative errors on what was not fitted", columns, rows))
    knees = report.alone.knees
    console.print(
        Text(
            f"Knee: {knees.fitted_median:.0f} points of share from the measured one at the median, "
            f"{knees.fitted_within_10:.0%} of {knees.n} within 10 points"
        )
    )
    for model, (said, measured) in report.alone.analytical_knees.items():
        console.print(Text(f"Knee of {model} by its kernels alone: {said} %, measured {measured} %"))
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
