"""Plots of study `dstack`: SVG files and an HTML page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cotenant_lab.serving.modes import ADMITTED, OURS
from cotenant_lab.study.device.plots import drawing, save, write_plots_page
from cotenant_lab.study.dstack.report import ALL, DstackReport
from cotenant_lab.study.dstack.run import POISSON, PUBLISHED

_COLOURS: Final = {
    OURS: "#1f6fb4",
    "temporal": "#444444",
    "fixed": "#9aa5b1",
    "triton": "#3a9a5b",
    "clipper": "#e8a33d",
    "nexus": "#8e5ea2",
    "gslice": "#d1495b",
}
_BATCHES: Final = ("#9ecae1", "#6baed6", "#3182bd", "#08519c")


def plotter(directory: Path) -> Callable[[DstackReport], None]:
    """Return a function that draws into this directory; raise ConfigError now if drawing is impossible."""
    draw = drawing(directory)

    def into_files(report: DstackReport) -> None:
        with draw() as pyplot:
            captions = {
                "curves.svg": _draw_curves(pyplot, directory / "curves.svg", report),
                "loads.svg": _draw_loads(pyplot, directory / "loads.svg", report),
                "over.svg": _draw_over(pyplot, directory / "over.svg", report),
            }
        rows = "".join(
            f"<tr><td>{result.mode}<td>{result.models}<td>{result.throughput.median:.2f}<td>{result.throughput_admitted.median:.2f}"
            f"<td>{result.utilization.median:.2f}</tr>"
            for result in report.results
        )
        head = "<tr><th>ours over<th>models<th>in time<th>with our admission<th>utilization</tr>"
        text = f"cotenant-lab study dstack, seed {report.seed}; medians; compare with {report.paper.source}"
        write_plots_page(directory, "Many models on one GPU", text, head, rows, captions, report.met)

    return into_files


def _draw_curves(pyplot: Any, path: Path, report: DstackReport) -> str:
    """Draw each model's latency by share and batch, its knees, and the point with the least device time per row."""
    figure, axes = pyplot.subplots(2, 4, figsize=(15, 7), layout="constrained")
    for axis, model in zip(axes.flat, report.models, strict=False):
        for colour, (batch, curve) in zip(_BATCHES, model.latency_ms.items(), strict=False):
            axis.plot(list(curve), list(curve.values()), color=colour, label=f"batch {batch}")
            knee = model.knees_pct[batch]
            axis.plot([knee], [curve[knee]], "o", color=colour, ms=6)
            fitted = model.fitted_knees_pct[batch]
            axis.plot([fitted], [curve[fitted]], "x", color=colour, ms=6)
        best = model.latency_ms[model.best_batch][model.best_share_pct]
        axis.plot([model.best_share_pct], [best], "*", color="#d1495b", ms=12, label="least device time per row")
        axis.axhline(model.slo_ms, color="#444444", ls=":", label="objective")
        axis.set_title(model.name)
        axis.set_yscale("log")
        axis.set_xlabel("share of the SMs, %")
    axes[0][0].set_ylabel("latency, ms")
    axes[1][0].set_ylabel("latency, ms")
    handles, labels = axes[0][0].get_legend_handles_labels()
    axes[1][3].legend(handles, labels, loc="center")
    for axis in list(axes.flat)[len(report.models) :]:
        axis.axis("off")
    save(pyplot, figure, path)
    return "Measured latency by share and batch (V100); dots: knees by the curve, crosses: by the analytical model."


def _draw_loads(pyplot: Any, path: Path, report: DstackReport) -> str:
    """Draw rows in time as a fraction of capacity: the median combination, and the middle half for ours."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 4.6), sharey=True)
    for axis, modes, title in (
        (left, [OURS, *PUBLISHED], "as published"),
        (right, [OURS, *(mode + ADMITTED for mode in PUBLISHED)], "each with our admission"),
    ):
        for mode in modes:
            summaries = sorted(
                (load for load in report.loads if load.mode == mode and load.rhythm == POISSON),
                key=lambda summary: summary.load,
            )
            loads = [summary.load for summary in summaries]
            parts = [min(summary.load, 1.0) for summary in summaries]
            colour = _COLOURS[mode.removesuffix(ADMITTED)]
            medians = [
                100 * summary.of_fair_bound.median * part for summary, part in zip(summaries, parts, strict=True)
            ]
            axis.plot(loads, medians, "o-", color=colour, label=mode.removesuffix(ADMITTED), ms=4)
            if mode == OURS:
                low = [
                    100 * summary.of_fair_bound.quarter * part for summary, part in zip(summaries, parts, strict=True)
                ]
                high = [
                    100 * summary.of_fair_bound.three_quarters * part
                    for summary, part in zip(summaries, parts, strict=True)
                ]
                axis.fill_between(loads, low, high, color=colour, alpha=0.2)
        axis.plot([0, 1, 2], [0, 100, 100], color="#444444", ls=":", label="bound, equal fractions")
        axis.set_title(title)
        axis.set_xlabel("offered, fraction of the capacity")
        axis.legend(fontsize=8)
    left.set_ylabel("in time, % of the capacity")
    save(pyplot, figure, path)
    return "Requests in time by offered load, median over combinations (band: the middle half, ours)."


def _draw_over(pyplot: Any, path: Path, report: DstackReport) -> str:
    """Draw our result over each mode's, by the number of models."""
    figure, axes = pyplot.subplots(1, 2, figsize=(13, 4.6))
    sizes = [size for size in dict.fromkeys(result.models for result in report.results) if size != ALL]
    for axis, title in zip(axes, ("in time, its best of with and without our admission", "utilization"), strict=True):
        for index, mode in enumerate(PUBLISHED):
            for number, size in enumerate(sizes):
                comparison = next(result for result in report.results if result.mode == mode and result.models == size)
                spread = comparison.throughput_admitted if title.startswith("in time") else comparison.utilization
                x = index + 0.18 * (number - (len(sizes) - 1) / 2)
                axis.plot([x, x], [spread.min, spread.max], color=_COLOURS[mode], lw=1)
                axis.plot([x, x], [spread.quarter, spread.three_quarters], color=_COLOURS[mode], lw=5)
                axis.plot([x], [spread.median], "o", color="white", ms=3)
        axis.axhline(1.0, color="#444444", ls=":")
        axis.set_xticks(range(len(PUBLISHED)), list(PUBLISHED))
        axis.set_yscale("log")
        axis.set_title(f"ours over each: {title}")
    save(pyplot, figure, path)
    return f"For each mode, combinations of {', '.join(sizes)} models from left to right: range, middle half, median."
