"""Plots of study `muxflow`: SVG files and an HTML page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cotenant_lab.study.device.plots import drawing, save, write_plots_page
from cotenant_lab.study.muxflow.run import OURS, ClusterResult, MuxflowReport

_BEFORE, _AFTER, _OURS = "#9aa5b1", "#1f6fb4", "#d1495b"
_METRICS: Final = {"utilization": "GPU utilization", "sm_activity": "SM activity", "memory": "GPU memory"}


def plotter(directory: Path) -> Callable[[MuxflowReport], None]:
    """Return a function that draws into this directory; raise ConfigError now if drawing is impossible."""
    draw = drawing(directory)

    def into_files(report: MuxflowReport) -> None:
        captions = {}
        with draw() as pyplot:
            for cluster in report.clusters:
                use, cost = f"{cluster.name}-use.svg", f"{cluster.name}-cost.svg"
                captions[use] = _draw_use(pyplot, directory / use, cluster, report)
                captions[cost] = _draw_cost(pyplot, directory / cost, cluster)
        head = "<tr><th>cluster<th>policy<th>mode<th>utilization<th>SM activity<th>memory<th>slowdown<th>JCT (h)</tr>"
        rows = "".join(
            f"<tr><td>{cluster.name}<td>{outcome.policy}<td>{outcome.mode}"
            + "".join(f"<td>{a:.1%} to {b:.1%}" for a, b in (outcome.utilization, outcome.sm_activity, outcome.memory))
            + f"<td>{outcome.online_slowdown:.3f}<td>{outcome.jct_h:.2f}</tr>"
            for cluster in report.clusters
            for outcome in cluster.found
        )
        text = f"cotenant-lab study muxflow, seed {report.seed}; compare with {report.paper.source}"
        write_plots_page(directory, "Sharing in a cluster", text, head, rows, captions, report.met)

    return into_files


def _draw_use(pyplot: Any, path: Path, cluster: ClusterResult, report: MuxflowReport) -> str:
    figure, axes = pyplot.subplots(1, 3, figsize=(13, 4.6), sharey=True)
    for axis, (name, title) in zip(axes, _METRICS.items(), strict=True):
        bars = {outcome.policy: getattr(outcome, name) for outcome in cluster.found}
        bars["MuxFlow, published"] = tuple(part / 100 for part in getattr(report.paper, name))
        for index, (before, after) in enumerate(bars.values()):
            axis.barh(index + 0.2, 100 * before, 0.38, color=_BEFORE, label=None if index else "before")
            axis.barh(index - 0.2, 100 * after, 0.38, color=_AFTER, label=None if index else "after")
        axis.set_yticks(range(len(bars)), list(bars))
        axis.set_xlabel("%")
        axis.set_title(title)
    axes[0].invert_yaxis()
    axes[0].legend()
    save(pyplot, figure, path)
    return f"{cluster.name}: {cluster.jobs} jobs on {cluster.gpus} GPUs, before and after sharing."


def _draw_cost(pyplot: Any, path: Path, cluster: ClusterResult) -> str:
    figure, axis = pyplot.subplots(figsize=(8, 4.6))
    for outcome in cluster.found:
        axis.plot([outcome.online_slowdown], [outcome.jct_h], "o", color=_OURS if outcome.policy == OURS else _AFTER)
        axis.annotate(
            outcome.policy, (outcome.online_slowdown, outcome.jct_h), xytext=(4, 3), textcoords="offset points"
        )
    axis.axvline(1.2, color="#444444", ls=":")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("online slowdown, mean")
    axis.set_ylabel("mean job completion time, h")
    save(pyplot, figure, path)
    return f"{cluster.name}: online slowdown and offline completion time of each policy; dotted: 20 %."
