"""Output of `cotenant simulate` for a cluster."""

from __future__ import annotations

from rich.console import Console

from cotenant.cli.render.tables import table
from cotenant.simulate.cluster import ClusterOutcome, Distribution


def about(outcome: ClusterOutcome) -> str:
    """Describe the scenario in a sentence."""
    jobs = ", ".join(f"{count:,} {state}" for state, count in outcome.jobs.items()) or "none"
    omitted = f"; {outcome.left_out:,} were omitted because they fit on no node" if outcome.left_out else ""
    return (
        f"{outcome.nodes:,} nodes, {outcome.gpus:,} GPUs, {outcome.hours:.1f} h; placed by {outcome.place}, "
        f"sharing mode {outcome.mode}; jobs: {jobs}{omitted}."
    )


def conclusion(outcome: ClusterOutcome) -> str:
    """Return the result in one sentence."""
    return (
        f"Sharing raised the GPU utilization from {outcome.utilization_before:.1%} to {outcome.utilization:.1%}; "
        f"online work became {outcome.online_slowdown_mean - 1:.1%} slower on average."
    )


def metric_rows(outcome: ClusterOutcome) -> list[tuple[str, str, str]]:
    """Return rows of a metric, its value with sharing, and its value without."""
    crashes = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in outcome.crashes.items() if count)
    time = outcome.gpu_time
    return [
        ("GPU utilization", f"{outcome.utilization:.1%}", f"{outcome.utilization_before:.1%}"),
        ("SM activity", f"{outcome.sm_activity:.1%}", f"{outcome.sm_activity_before:.1%}"),
        ("memory allocated", f"{outcome.memory:.1%}", f"{outcome.memory_before:.1%}"),
        ("online slowdown, mean", f"{outcome.online_slowdown_mean:.3f}", "1.000"),
        ("online slowdown, p99", f"{outcome.online_slowdown_p99:.3f}", "1.000"),
        ("offline throughput, GPUs per GPU", f"{outcome.offline_speed:.3f}", "0.000"),
        ("job completion time: mean, p50, p99", _spread(outcome.jct_h), ""),
        ("wait for the first start: mean, p50, p99", _spread(outcome.wait_h), ""),
        ("makespan", f"{outcome.makespan_h:.2f} h" if outcome.makespan_h else "not all jobs ended", ""),
        ("work completed; lost", f"{outcome.work_done_h:,.1f} h; {outcome.work_lost_h:,.1f} h", ""),
        ("evictions; moves among them", f"{outcome.evictions:,}; {outcome.moves:,}", ""),
        ("failed attempts; refused attempts", f"{outcome.failures:,}; {outcome.refused:,}", ""),
        ("failures by kind", crashes or "none", ""),
        ("GPU time: shared, free, down", f"{time['shared']:.1%}, {time['free']:.1%}, {time['down']:.1%}", ""),
        ("digest of the decisions", outcome.decisions, ""),
    ]


def show_cluster_outcome(console: Console, outcome: ClusterOutcome) -> None:
    """Print the metrics of a simulated cluster."""
    console.print(about(outcome), highlight=False)
    console.print(table("", ("METRIC", "SHARED", "ONLINE ONLY"), metric_rows(outcome)))
    for problem in outcome.problems[:20]:
        console.print(f"inconsistent: {problem}", style="bold red", highlight=False)


def _spread(distribution: Distribution) -> str:
    return f"{distribution.mean:.2f} h, {distribution.p50:.2f} h, {distribution.p99:.2f} h"
