"""How does `cotenant place --dry-run` read on a terminal?"""

from __future__ import annotations

from collections import Counter

from rich.console import Console

from cotenant.apps.place import PlaceReport
from cotenant.apps.show import table
from cotenant.format.quantity import counted

_IDLE_SHOWN = 40


def show_place(console: Console, report: PlaceReport) -> None:
    """Who with whom; and why not the others."""
    rows = [
        [
            one.job,
            one.user,
            f"{one.node}/{','.join(str(gpu) for gpu in one.gpus)}",
            f"{one.share:.0%}",
            f"{one.speed:.3f}",
            f"{one.online_slowdown:.3f}",
            _remark(one.moved_from, one.discarded, one.instead),
        ]
        for one in report.placed
    ]
    columns = ["JOB", "USER", "WHERE", "SHARE", "SPEED", "ONLINE SLOWDOWN", "REMARK"]
    console.print(table(f"who with whom, by {report.policy}", columns, rows))
    if report.bound:
        part = report.value / report.bound
        console.print(
            f"worth {report.value:.3f}; no other choice is worth more than {report.bound:.3f} ({part:.4f} of it)"
        )
    if report.waiting:
        waiting = [[one.job, one.user, one.why] for one in report.waiting]
        console.print(table("who goes on waiting", ["JOB", "USER", "WHY"], waiting, fold=True))
    if len(report.idle) <= _IDLE_SHOWN:
        idle = [[f"{one.node}/{one.gpu}", one.why] for one in report.idle]
        console.print(table("GPUs that get no job", ["WHERE", "WHY"], idle))
    else:
        reasons = Counter(one.why for one in report.idle).most_common(_IDLE_SHOWN)
        rows = [[counted(count, "GPU"), why] for why, count in reasons]
        console.print(table("GPUs that get no job", ["HOW MANY", "WHY"], rows))


def _remark(moved_from: str, discarded: str, instead: str) -> str:
    words = [f"moved from {moved_from}"] if moved_from else []
    words += [f"discarded: {discarded}"] if discarded else []
    words += [f"would go at {instead}"] if instead else []
    return "; ".join(words)
