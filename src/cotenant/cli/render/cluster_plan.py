"""Output of `cotenant cluster plan`."""

from __future__ import annotations

from collections import Counter

from rich.console import Console

from cotenant.cli.render.tables import table
from cotenant.cluster.plan import PlanReport
from cotenant.units.text import counted

_IDLE_SHOWN = 40


def show_plan(console: Console, report: PlanReport) -> None:
    """Print the placed jobs, the waiting jobs and the GPUs without a job, with reasons."""
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
    columns = ["JOB", "USER", "GPU", "SHARE", "SPEED", "ONLINE SLOWDOWN", "REMARK"]
    console.print(table(f"placed jobs, policy {report.policy}", columns, rows))
    if report.bound:
        part = report.value / report.bound
        console.print(f"total weight {report.value:.3f}, {part:.4f} of the upper bound {report.bound:.3f}")
    if report.waiting:
        waiting = [[one.job, one.user, one.why] for one in report.waiting]
        console.print(table("waiting jobs", ["JOB", "USER", "REASON"], waiting, fold=True))
    if len(report.idle) <= _IDLE_SHOWN:
        idle = [[f"{one.node}/{one.gpu}", one.why] for one in report.idle]
        console.print(table("GPUs without a job", ["GPU", "REASON"], idle))
    else:
        reasons = Counter(one.why for one in report.idle).most_common(_IDLE_SHOWN)
        rows = [[counted(count, "GPU"), why] for why, count in reasons]
        console.print(table("GPUs without a job", ["COUNT", "REASON"], rows))


def _remark(moved_from: str, discarded: str, instead: str) -> str:
    words = [f"moved from {moved_from}"] if moved_from else []
    words += [f"discarded: {discarded}"] if discarded else []
    words += [f"best alternative: {instead}"] if instead else []
    return "; ".join(words)
