"""Terminal tables of study `muxflow`."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from cotenant.cli.render.tables import table
from cotenant_lab.study.claim import show_claims
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
    show_claims(console, report.claims)
    show_published(console, report.paper, "other machines, other programs", report.met)


def _show_cluster(console: Console, cluster: ClusterResult) -> None:
    columns = [
        "POLICY",
        "MODE",
        "UTILIZATION",
        "SM ACTIVITY",
        "MEMORY",
        "SLOWDOWN",
        "SERVICE TIME",
        "P99",
        "OFFLINE",
        "JCT (h)",
        "DONE",
    ]
    title = f"{cluster.name}: {cluster.jobs} jobs on {cluster.gpus} GPUs; {cluster.source}"
    rows = [_row(outcome) for outcome in cluster.found]
    console.print(table(title, [*columns, "95 % BY (h)", "MAKESPAN (h)", "EVICTED"], rows))
    for outcome in cluster.found:
        if outcome.policy == OURS and outcome.full:
            parts = ", ".join(f"{name.replace('_', ' ')} {part:.0%}" for name, part in outcome.full.items())
            console.print(Text(f"{outcome.policy}, while jobs wait: {parts}"))
    console.print()


def _row(outcome: PolicyOutcome) -> list[str | Text]:
    return [
        outcome.policy,
        outcome.mode,
        *(
            f"{before:.0%} -> {after:.0%}"
            for before, after in (outcome.utilization, outcome.sm_activity, outcome.memory)
        ),
        f"x{outcome.online_slowdown:.2f}",
        f"x{outcome.online_service:.2f}",
        f"x{outcome.online_slowdown_p99:.2f}",
        f"{outcome.offline_speed:.2f}",
        f"{outcome.jct_h:.2f}",
        f"{outcome.done:.0%}",
        f"{outcome.most_done_h:.1f}" if outcome.most_done_h else "-",
        f"{outcome.makespan_h:.1f}" if outcome.makespan_h else "not all done",
        str(outcome.evictions),
    ]
