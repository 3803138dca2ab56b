"""Output of `cotenant ps`, `top` and `jobs` with -A, and of `cotenant explain pod`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from cotenant.cli.render.tables import age_text, printable, table
from cotenant.cluster.kubernetes.views import GpuView, JobView, PodExplanation, PodPhase, PodView
from cotenant.units.instant import Instant
from cotenant.units.text import counted, round_share, round_size

_STYLES: Final = {
    PodPhase.WAITING: "yellow",
    PodPhase.STARTING: "cyan",
    PodPhase.RUNNING: "green",
    PodPhase.ENDING: "cyan",
    PodPhase.DONE: "dim",
    PodPhase.FAILED: "bold red",
}
_POD_COLUMNS: Final = ("NAMESPACE", "POD", "KIND", "STATE", "NODE", "GPU", "MEMORY", "DONE", "SPEED", "AGE", "REASON")
_GPU_COLUMNS: Final = (
    *("NODE", "GPU", "TYPE", "CONDITION", "MEMORY", "FREE", "OFFER", "LOAD", "REPORTED", "ONLINE", "OFFLINE"),
)
_JOB_COLUMNS: Final = ("NAMESPACE", "JOB", "DONE", "FAILED", "PODS", "AGE", "REASON")


def pods_table(views: Sequence[PodView], now: Instant) -> Group:
    """Return a table of pods, and the number of pods in each phase."""
    rows: list[list[str | Text]] = [
        [
            view.namespace,
            view.name,
            view.kind,
            Text(view.phase.value, style=_STYLES[view.phase]),
            view.node,
            ",".join(map(str, view.gpus)),
            round_size(view.memory_bytes) if view.memory_bytes else "",
            round_share(view.progress_ppm) if view.progress_ppm else "",
            round_share(view.rate_ppm) if view.rate_ppm else "",
            _age(view.created_ns, now),
            view.reason,
        ]
        for view in views
    ]
    counts = [(phase, sum(view.phase is phase for view in views)) for phase in PodPhase]
    summary = ", ".join(f"{count:,} {phase.value}" for phase, count in counts if count)
    return Group(_uncut(table("", _POD_COLUMNS, rows)), Text(f"{counted(len(rows), 'pod')}{_after(summary)}"))


def gpus_table(views: Sequence[GpuView]) -> Group:
    """Return a table of GPUs, and their number."""
    rows: list[list[str | Text]] = [
        [
            view.node,
            str(view.index),
            view.type,
            Text(view.condition, style="" if view.condition == "healthy" else "bold red"),
            round_size(view.memory_bytes),
            round_size(view.free_bytes),
            round_share(view.offer_ppm),
            round_share(view.load_ppm),
            f"{age_text(view.age_ns)} ago",
            ", ".join(view.online),
            ", ".join(view.offline),
        ]
        for view in views
    ]
    busy = sum(bool(view.offline) for view in views)
    return Group(
        _uncut(table("", _GPU_COLUMNS, rows)), Text(f"{counted(len(rows), 'GPU')}, {busy:,} with offline work")
    )


def jobs_table(views: Sequence[JobView], now: Instant) -> Group:
    """Return a table of Jobs, and their number."""
    rows: list[list[str | Text]] = [
        [
            view.namespace,
            view.name,
            f"{view.succeeded}/{view.completions}",
            str(view.failed),
            ", ".join(f"{count} {phase.value}" for phase, count in view.counts),
            _age(view.created_ns, now),
            view.reason,
        ]
        for view in views
    ]
    return Group(_uncut(table("", _JOB_COLUMNS, rows)), Text(counted(len(rows), "job")))


def print_explanation(console: Console, explanation: PodExplanation) -> None:
    """Print why a pod waits, runs or ended, then its latest events."""
    console.print(Text(explanation.summary, style="bold"))
    for number, cause in enumerate(explanation.causes, 1):
        console.print(Text(f"{number}. {printable(cause)}"))
    for time, text in explanation.events:
        console.print(Text(f"   event at {printable(time)}: {printable(text)}", style="dim"))


def _uncut(result: Table) -> Table:
    """Let the last column, the reason, continue on further lines instead of being cut."""
    result.columns[-1].no_wrap = False
    return result


def _age(created_ns: Instant, now: Instant) -> str:
    return age_text(max(0, now - created_ns)) if created_ns else ""


def _after(summary: str) -> str:
    return f": {summary}" if summary else ""
