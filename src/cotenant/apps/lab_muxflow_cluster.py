"""Wires the lab of a cluster: finds the traces, plays every policy, tells how far it is, and shows what was found."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from cotenant.apps.lab_progress import parts_shown
from cotenant.apps.show import table
from cotenant.apps.show_muxflow import show_published
from cotenant.errors import WorldError
from cotenant.experiment.lab.muxflow_cluster import OURS, Cluster, Found, Report, judge_clusters, report_of, setups


def run_muxflow_cluster(
    directory: Path, seed: int, console: Console, say: Callable[[str], None], *, quick: bool
) -> Report:
    """The judgement; meanwhile a bar on a terminal, and elsewhere a line."""
    asked = []
    for setup in setups(quick=quick):
        if (directory / setup.jobs).exists():
            asked.append(setup)
        else:
            say(f"left out: {setup.name}: {directory / setup.jobs} does not exist")
    if not asked:
        raise WorldError(
            f"the traces to play are not in {directory}; set COTENANT_DATA or --data to the directory that holds them"
        )
    with parts_shown(console, say, "to play") as progress:
        clusters = judge_clusters(asked, directory, seed, 1 if quick else os.cpu_count() or 1, progress)
    return report_of(clusters, seed, quick=quick)


def show_muxflow_cluster(console: Console, report: Report) -> None:
    """`cotenant lab muxflow`."""
    for cluster in report.clusters:
        _show_cluster(console, cluster)
    show_published(console, report.paper, "other machines, other programs", report.met)


def _show_cluster(console: Console, cluster: Cluster) -> None:
    columns = ["POLICY", "WAY", "UTILIZATION", "SM ACTIVITY", "MEMORY", "SLOWDOWN", "P99", "OFFLINE", "JCT (h)", "DONE"]
    title = f"{cluster.name}: {cluster.jobs} jobs on {cluster.gpus} GPUs; {cluster.source}"
    rows = [_row(one) for one in cluster.found]
    console.print(table(title, [*columns, "95 % BY (h)", "MAKESPAN (h)", "EVICTED"], rows))
    for one in cluster.found:
        if one.policy == OURS and one.full:
            parts = ", ".join(f"{name.replace('_', ' ')} {part:.0%}" for name, part in one.full.items())
            console.print(Text(f"{one.policy}, while jobs wait: {parts}"))
    console.print()


def _row(one: Found) -> list[str | Text]:
    return [
        one.policy,
        one.way,
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
