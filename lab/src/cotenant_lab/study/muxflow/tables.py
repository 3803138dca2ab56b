"""Terminal tables of study `muxflow`."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from cotenant.cli.render.tables import table
from cotenant_lab.study.muxflow.run import (
    OURS,
    ClusterResult,
    MuxflowReport,
    PolicyOutcome,
)
from cotenant_lab.study.muxflow_node.tables import show_published


def show_muxflow(console: Console, report: MuxflowReport) -> None:
    """Print the report of `cotenant-lab study muxflow`."""
    for cluster in report.clusters:
        _show_cluster(console, cluster)
    show_published(console, report.paper, "other machines, other programs", report.met)


def _show_cluster(console: Console, cluster: ClusterResult) -> None:
    columns = [
        "POLICY",
        "MODE",
        "UTILIZATION",
        "SM ACTIVITY",
        "MEMORY",
        "SLOWDOWN",
        "P99",
        "OFFLINE",
        "JCT (h)",
        "DONE",
    ]
    title = f"{cluster.name}: {cluster.jobs} jobs on {cluster.gpus} GPUs; {cluster.source}"
    rows = [_row(one) for one in cluster.found]
    console.print(table(title, [*columns, "95 % BY (h)", "MAKESPAN (h)", "EVICTED"], rows))
    for one in cluster.found:
        if one.policy == OURS and one.full:
            parts = ", ".join(f"{name.replace('_', ' ')} {part:.0%}" for name, part in one.full.items())
            console.print(Text(f"{one.policy}, while jobs wait: {parts}"))
    console.print()


def _row(one: PolicyOutcome) -> list[str | Text]:
    return [
        one.policy,
        one.mode,
        *(f"{before:.0%} -> {after:.0%}" for before, after in (one.utilization, one.sm_activity, one.memory)),
        f"x{one.online_slowdown:.2f}",
        f"x{one.online_slowdown_p99:.2f}",
        f"{one.offline_speed:.2f}",
        f"{one.jct_h:.2f}",
        f"{one.done:.0%}",
        f"{one.most_done_h:.1f}" if one.most_done_h else "-",
        f"{one.makespan_h:.1f}" if one.makespan_h else "not all done",
        str(one.evictions),
    ]
