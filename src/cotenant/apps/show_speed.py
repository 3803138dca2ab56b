"""How does the lab's judgement of foretold speeds look in a terminal?"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from cotenant.apps.show import table
from cotenant.experiment.lab.judge import Errors
from cotenant.experiment.lab.speed import SEEN, Report


def show_speed(console: Console, report: Report) -> None:
    """`cotenant lab predictor`."""
    kinds = list(report.held_out[0].models)
    rows: list[list[str | Text]] = [
        [one.way, one.programs, one.of, f"{one.models[kinds[0]].n:,}", *(_told(one.models[kind]) for kind in kinds)]
        for one in report.held_out
    ]
    title = f"On the software GPU: pairs that no fit has seen, of {report.fitted_pairs:,} fitted (median / p90 error)"
    console.print(table(title, ["WAY", "PROGRAMS", "OF", "PAIRS", *(kind.upper() for kind in kinds)], rows))
    console.print(Text(f"Kept: {report.kept}"))
    rows = []
    for line in report.judged:
        others = [(kind, one) for kind, one in line.models.items() if kind != report.kept]
        others += line.baselines.items()
        if line.seen is not None:
            others.append((f"{report.kept}, {SEEN}", line.seen))
        rows.append(
            [line.name, line.of, f"{line.kept.n:,}", f"{report.kept}, kept", _told(line.kept), f"{line.within:.1%}"]
        )
        rows += [["", "", "", name, _told(one), ""] for name, one in others]
    columns = ["MEASURED BY", "OF", "CASES", "FORETOLD BY", "MEDIAN / P90", "WITHIN"]
    console.print(table("On real GPUs: what no fit and no choice has seen", columns, rows))
    missed = [target for target, met in report.met.items() if not met]
    for target in missed:
        console.print(Text(f"{target}: missed", style="bold red"))
    console.print(Text(f"{len(report.met) - len(missed)} of {len(report.met)} targets are met"))


def _told(errors: Errors) -> str:
    return f"{errors.median:.1%} / {errors.p90:.1%}"
