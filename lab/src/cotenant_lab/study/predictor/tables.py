"""Terminal tables of study `predictor`."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from cotenant.cli.render.tables import table
from cotenant_lab.study.error import ErrorSummary
from cotenant_lab.study.predictor.run import SEEN, PredictorReport


def show_predictor(console: Console, report: PredictorReport) -> None:
    """Print the report of `cotenant-lab study predictor`."""
    kinds = list(report.held_out[0].models)
    rows: list[list[str | Text]] = [
        [
            errors.mode,
            errors.programs,
            errors.of,
            f"{errors.models[kinds[0]].n:,}",
            *(_errors_text(errors.models[kind]) for kind in kinds),
        ]
        for errors in report.held_out
    ]
    title = f"On the software GPU: held-out pairs, of {report.fitted_pairs:,} fitted (median / p90 error)"
    console.print(table(title, ["WAY", "PROGRAMS", "OF", "PAIRS", *(kind.upper() for kind in kinds)], rows))
    console.print(Text(f"Kept: {report.kept}"))
    rows = []
    for line in report.results:
        others = [(kind, errors) for kind, errors in line.models.items() if kind != report.kept]
        others += line.baselines.items()
        if line.seen is not None:
            others.append((f"{report.kept}, {SEEN}", line.seen))
        rows.append(
            [
                line.name,
                line.of,
                f"{line.kept.n:,}",
                f"{report.kept}, kept",
                _errors_text(line.kept),
                f"{line.within:.1%}",
            ]
        )
        rows += [["", "", "", name, _errors_text(errors), ""] for name, errors in others]
    columns = ["MEASURED BY", "OF", "CASES", "PREDICTED BY", "MEDIAN / P90", "WITHIN"]
    console.print(table("On real GPUs: measurements that no fit and no choice used", columns, rows))
    missed = [target for target, met in report.met.items() if not met]
    for target in missed:
        console.print(Text(f"{target}: missed", style="bold red"))
    console.print(Text(f"{len(report.met) - len(missed)} of {len(report.met)} targets are met"))


def _errors_text(errors: ErrorSummary) -> str:
    return f"{errors.median:.1%} / {errors.p90:.1%}"
