"""Output of `cotenant cluster plan`."""

from __future__ import annotations

from collections import Counter

from rich.console import Console

from cotenant.cli.render.tables import table
from cotenant.cluster.plan import PlanReport
from cotenant.units.text import counted

_IDLE_LIMIT = 40


def show_plan(console: Console, report: PlanReport) -> None:
    """Print the placed jobs, the waiting jobs and the GPUs without a job, with reasons."""
    rows = [
        [
            placed.job,
            placed.user,
            f"{placed.node}/{','.join(str(gpu) for gpu in placed.gpus)}",
            f"{placed.share:.0%}",
            f"{placed.speed:.3f}",
            f"{placed.online_slowdown:.3f}",
            _remark(placed.moved_from, placed.discarded, placed.instead),
        ]
        for placed in report.placed
    ]
    columns = ["JOB", "USER", "GPU", "SHARE", "SPEED", "ONLINE SLOWDOWN", "REMARK"]
    console.print(table(f"placed jobs, policy {report.policy}", columns, rows))
    if report.bound:
        part = report.value / report.bound
        console.print(f"total weight {report.value:.3f}, {part:.4f} of the upper bound {report.bound:.3f}")
    if report.waiting:
        waiting = [[job.job, job.user, job.why] for job in report.waiting]
        console.print(table("waiting jobs", ["JOB", "USER", "REASON"], waiting, fold=True))
    if len(report.idle) <= _IDLE_LIMIT:
        idle = [[f"{gpu.node}/{gpu.gpu}", gpu.why] for gpu in report.idle]
        console.print(table("GPUs without a job", ["GPU", "REASON"], idle))
    else:
        reasons = Counter(gpu.why for gpu in report.idle).most_common(_IDLE_LIMIT)
        rows = [[counted(count, "GPU"), why] for why, count in reasons]
        console.print(table("GPUs without a job", ["COUNT", "REASON"], rows))


def _remark(moved_from: str, discarded: str, instead: str) -> str:
    remarks = [f"moved from {moved_from}"] if moved_from else []
    remarks += [f"discarded: {discarded}"] if discarded else []
    remarks += [f"best alternative: {instead}"] if instead else []
    return "; ".join(remarks)
