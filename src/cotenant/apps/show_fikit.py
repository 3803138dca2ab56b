"""How does the lab's judgement of gap filling look in a terminal?"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from cotenant.apps.show import table
from cotenant.experiment.fill.figures import COTENANT
from cotenant.experiment.lab.fikit import Group, Judged
from cotenant.experiment.lab.fikit_report import Report

_NAME_MOST = 44
_SHOWN = (
    "online_delay_ratio",
    "online_delay_of_wall",
    "online_speedup_vs_sharing",
    "online_slowdown",
    "offline_ratio_vs_sharing",
    "offline_vs_alone",
    "fill_vs_oracle",
)


def show_fikit(console: Console, report: Report) -> None:
    """`cotenant lab fikit`."""
    for sharing in COTENANT:
        pairs = report.groups.get("pairs")
        if pairs is not None:
            _show_cases(console, pairs, sharing)
    for group in report.groups.values():
        _show_group(console, group)
    paper = "; ".join(f"{name} {text}" for name, text in report.paper.items())
    console.print(Text(f"FIKIT, as published (other programs, real GPUs): {paper}"))
    for one in report.agreement:
        console.print(
            Text(
                f"live and simulated, {one.figure} ({one.sharing}): Spearman {one.spearman:.2f}, "
                f"median difference {one.median_error:.3f} over {one.pairs} pairs"
            )
        )
    for target, met in report.met.items():
        console.print(Text(f"{target}: {'met' if met else 'missed'}", style="green" if met else "bold red"))


def _show_cases(console: Console, group: Group, sharing: str) -> None:
    columns = ["PAIR", "GAPS", "DELAY", "OF WALL", "SPEEDUP", "OFFLINE / SHARING", "/ ALONE", "/ ORACLE"]
    rows: list[list[str | Text]] = [_row(one, sharing) for one in group.cases]
    console.print(table(f"cotenant against {sharing}", columns, rows))
    console.print()


def _row(one: Judged, sharing: str) -> list[str | Text]:
    figures, mode = one.figures, COTENANT[sharing]
    return [
        figures.name[:_NAME_MOST],
        f"{one.gap_ratio:.0%}",
        f"{figures.online_delay_ratio[mode]:.3f}",
        f"{one.delay_of_wall[sharing]:.3f}",
        f"{figures.online_speedup_vs_sharing[sharing]:.2f}",
        f"{figures.offline_ratio_vs_sharing[sharing]:.2f}",
        f"{figures.offline_vs_alone[mode]:.3f}",
        f"{one.fill_vs_oracle[sharing]:.2f}",
    ]


def _show_group(console: Console, group: Group) -> None:
    rows: list[list[str | Text]] = []
    for sharing in COTENANT:
        for figure in _SHOWN:
            found = group.figures.get(f"{figure}_{sharing}")
            if found is not None:
                rows.append([figure, sharing, f"{found.min:.3f}", f"{found.median:.3f}", f"{found.max:.3f}"])
    console.print(table(f"{group.name}: {len(group.cases)} cases", ["FIGURE", "SHARING", "MIN", "MEDIAN", "MAX"], rows))
    parts = ", ".join(f"{part:.0%} against {sharing}" for sharing, part in group.above.items())
    console.print(Text(f"online more than 3.5 times as fast: {parts}"))
    console.print()
