"""Terminal tables of study `predictor`."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from cotenant.cli.render.tables import table
from cotenant_lab.study.error import ErrorSummary
from cotenant_lab.study.predictor.judging import JudgedPredictor, JudgedSet
from cotenant_lab.study.predictor.run import PredictorReport


def show_predictor(console: Console, report: PredictorReport) -> None:
    """Print the report of `cotenant-lab study predictor`."""
    _show_judged(console, "node: slowdown of a tenant among others", report.node)
    _show_judged(console, "cluster: speed of a job next to services", report.cluster)
    _show_sets(
        console,
        "each data set with parameters fitted without any of it (node: slowdown; Gavel: speed)",
        [_row(one.name, one) for one in report.left_out],
    )
    for mode, law in report.law.items():
        console.print(Text(f"law, {mode}: " + ", ".join(f"{name} {value:g}" for name, value in law.items())))
    if report.measured_again:
        text = f"median {report.measured_again['median']:.1%}, p90 {report.measured_again['p90']:.1%}"
        console.print(Text(f"Gavel's two measurements of the same pairs differ by {text}"))
    if report.held_out:
        _show_held_out(console, report)
    _show_alone(console, report)
    _show_load(console, report)
    missed = [target for target, met in report.met.items() if not met]
    for target in missed:
        console.print(Text(f"{target}: missed", style="bold red"))
    console.print(Text(f"{len(report.met) - len(missed)} of {len(report.met)} targets are met"))


def _show_judged(console: Console, title: str, judged: JudgedPredictor) -> None:
    rows = [_row("all", judged), *(_row(one.name, one) for one in judged.sets)]
    rows += [_row(f"{one.name} (not counted)", one) for one in judged.not_counted]
    _show_sets(console, f"{title} (measurements that no fit used)", rows)


def _show_sets(console: Console, title: str, rows: list[list[str | Text]]) -> None:
    columns = ["MEASURED BY", "CASES", "MEDIAN / P90", "BIAS", "RANKS", "CONSTANT", "ADDITIVE", "OBSERVED", "WITHIN"]
    console.print(table(title, [*columns, "UP TO"], rows))


def _row(name: str, one: JudgedSet) -> list[str | Text]:
    return [
        name,
        f"{one.cases:,}",
        f"{one.error_median:.1%} / {one.error_p90:.1%}",
        f"{one.bias:.2f}",
        f"{one.rank_correlation:.2f}",
        *(
            f"{errors.error_median:.1%} / {errors.error_p90:.1%}"
            for errors in (one.constant, one.additive, one.after_observations)
        ),
        f"{one.coverage:.1%}",
        f"x{one.interval:.2f}",
    ]


def _show_held_out(console: Console, report: PredictorReport) -> None:
    kinds = list(report.held_out[0].models)
    rows: list[list[str | Text]] = [
        [errors.mode, errors.programs, errors.of, *(_errors_text(errors.models[kind]) for kind in kinds)]
        for errors in report.held_out
    ]
    columns = ["MODE", "PROGRAMS", "OF", *(kind.upper() for kind in kinds)]
    console.print(table("Pairs on the software GPU that no fit used (median / p90 error)", columns, rows))


def _show_alone(console: Console, report: PredictorReport) -> None:
    columns = ["PREDICTED", "MEASURED BY", "HELD OUT", "MEDIAN / P90", "SIMPLER PREDICTORS (MEDIAN)", "WITHIN", "UP TO"]
    rows: list[list[str | Text]] = [
        [
            comparison.name,
            comparison.source,
            f"{comparison.errors.n:,}",
            _errors_text(comparison.errors),
            "; ".join(f"{name} {errors.median:.1%}" for name, errors in comparison.baselines.items()),
            f"{comparison.coverage:.1%}",
            f"x{comparison.interval:.2f}",
        ]
        for comparison in report.alone.comparisons
    ]
    console.print(table("Latency alone: relative errors on held-out measurements", columns, rows))
    knees = report.alone.knees
    text = f"Knee: {knees.fitted_median:.0f} points of share from the measured one at the median"
    console.print(Text(f"{text}, {knees.fitted_within_10:.0%} of {knees.n} within 10 points"))
    for model, (predicted, measured) in report.alone.analytical_knees.items():
        console.print(Text(f"Knee of {model} by its kernels alone: {predicted} %, measured {measured} %"))


def _show_load(console: Console, report: PredictorReport) -> None:
    columns = ["LOAD OF", "WINDOW", "REQUESTS", "MEAN ERROR", "A CONSTANT", "THE LAST WINDOW", "WITHIN"]
    rows: list[list[str | Text]] = [
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


def _errors_text(errors: ErrorSummary) -> str:
    return f"{errors.median:.1%} / {errors.p90:.1%}"
