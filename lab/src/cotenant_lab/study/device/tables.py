"""Terminal tables of study `device`."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from cotenant.cli.render.tables import table
from cotenant_lab.study.device.run import DeviceReport
from cotenant_lab.study.error import ErrorCheck


def show_device(console: Console, report: DeviceReport) -> None:
    """Print the report of `cotenant-lab study device`."""
    columns = ["CHECK", "HELD OUT", "MEDIAN", "P90", "TARGET", "RESULT", "WORST", "CASE"]
    console.print(
        table(
            "the device model against measurements: relative errors", columns, [_row(check) for check in report.checks]
        )
    )
    console.print()
    rows = []
    for check in report.checks:
        for guess, errors in check.baselines.items():
            if ":" not in check.name:
                rows.append([check.name, guess, _percent(errors.median), _percent(errors.p90)])
    console.print(table("simpler predictors, same cases", ["CHECK", "PREDICTOR", "MEDIAN", "P90"], rows))
    console.print()
    sets = {"disb": report.disb, "parvagpu": report.parvagpu, "igniter": report.igniter}
    if report.miso is not None:
        sets["miso"] = report.miso
    if report.gavel is not None:
        sets["gavel, time slices"] = report.gavel.errors
    rows = [
        [name, half, f"{n:,}", _percent(median), _percent(p90), f"{bias:.3f}"]
        for name, errors in sets.items()
        for half, n, median, p90, bias in (
            ("held out", errors.n, errors.error_median, errors.error_p90, errors.bias),
            ("fitted", errors.fitted_n, errors.fitted_error_median, errors.fitted_error_p90, errors.fitted_bias),
        )
    ]
    console.print(table("both halves of each set", ["SET", "HALF", "CASES", "MEDIAN", "P90", "BIAS"], rows))
    console.print()
    if report.gavel is not None:
        constant = _percent(report.gavel.constant_median)
        text = (
            f"gavel: a constant has a median error of {constant}; the model does not explain these pairs, whose hosts"
        )
        console.print(Text(f"{text} slow each other more than their GPU does"))
        console.print()
    console.print(table("other splits", ["CHECK", "BY", "SEEDS", "MEDIAN", "MEDIANS FROM ... TO"], _spreads(report)))
    console.print()
    shares, knees = report.shares, report.shares.knees
    console.print(
        Text(
            f"{shares.models} models in {len(shares.curves)} curves, fitted at shares {shares.fitted_shares_pct} %; "
            f"worst model {shares.worst_model} (median {_percent(shares.worst_model_median)}).\n"
            f"Knee from {len(shares.fitted_shares_pct)} shares against the whole curve's: "
            f"median {knees.median_points:g}, p90 {knees.p90_points:g} points of share; "
            f"{_percent(knees.within_5_points)} within 5 points "
            f"({_percent(knees.interpolated_within_5_points)} by straight lines); worst {knees.worst_points} "
            f"({knees.worst_case})."
        )
    )
    console.print()
    title = "cases that the model does not explain" if report.unexplained else "no case has an error of more than 50 %"
    rows = [
        [case.case, f"{case.measured_ms:.1f} ms", f"{case.predicted_ms:.1f} ms", _percent(case.error), case.reason]
        for case in report.unexplained
    ]
    console.print(table(title, ["CASE", "MEASURED", "MODEL", "ERROR", "WHAT THE MEASUREMENT SHOWS"], rows, fold=True))


def _row(check: ErrorCheck) -> list[str | Text]:
    outcome = Text("no target", style="dim")
    if check.met is not None:
        outcome = Text("met", style="green") if check.met else Text("missed", style="bold red")
    return [
        check.name,
        f"{check.errors.n:,}",
        _percent(check.errors.median),
        _percent(check.errors.p90),
        "" if check.target is None else _percent(check.target),
        outcome,
        _percent(check.errors.worst),
        check.errors.worst_case,
    ]


def _spreads(report: DeviceReport) -> list[list[str | Text]]:
    return [
        [
            name,
            spread.by,
            str(spread.seeds),
            _percent(spread.median_of_medians),
            f"{_percent(spread.least_median)} to {_percent(spread.largest_median)}",
        ]
        for name, spreads in report.spreads.items()
        for spread in spreads
    ]


def _percent(part: float) -> str:
    shown = f"{100 * part:.1f}" if part >= 0.0005 else f"{100 * part:.4f}"
    return f"{shown} %"
