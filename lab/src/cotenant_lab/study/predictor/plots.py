"""Plots of study `predictor`: SVG files and an HTML page."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cotenant_lab.study.device.plots import drawing, save, write_plots_page
from cotenant_lab.study.error import relative
from cotenant_lab.study.predictor.latency import SurfacePlot
from cotenant_lab.study.predictor.run import PredictorEvidence, PredictorReport

_BELIEF, _MEASURED, _KNOWN = "#1f6fb4", "#444444", "#d1495b"
_WINDOWS: Final = 120


def plotter(directory: Path) -> Callable[[PredictorReport, PredictorEvidence], None]:
    """Return a function that draws into this directory; raise ConfigError now if drawing is impossible."""
    begin = drawing(directory)

    def draw(report: PredictorReport, evidence: PredictorEvidence) -> None:
        with begin() as pyplot:
            captions = {
                "speeds.svg": _draw_speeds(pyplot, directory / "speeds.svg", evidence),
                "latency.svg": _draw_latency(pyplot, directory / "latency.svg", evidence),
                "load.svg": _draw_load(pyplot, directory / "load.svg", evidence),
            }
        rows = "".join(
            f"<tr><td>{name}<td>{html.escape(one.name)}<td>{one.cases:,}<td>{one.error_median:.1%}"
            f"<td>{one.error_p90:.1%}<td>{one.coverage:.1%}</tr>"
            for name, judged in (("node", report.node), ("cluster", report.cluster))
            for one in (judged, *judged.sets)
        )
        head = "<tr><th>predictor<th>measured by<th>cases<th>median error<th>p90<th>within intervals of 90 %</tr>"
        text = f"cotenant-lab study predictor, seed {report.seed}"
        write_plots_page(directory, "The predictor against measurements", text, head, rows, captions, report.met)

    return draw


def _draw_speeds(pyplot: Any, path: Path, evidence: PredictorEvidence) -> str:
    figure, axes = pyplot.subplots(1, len(evidence.shown), figsize=(4.6 * len(evidence.shown), 4.6), squeeze=False)
    for axis, (name, points) in zip(axes[0], evidence.shown.items(), strict=True):
        axis.plot(
            [measured for _, measured in points], [predicted for predicted, _ in points], ".", color=_BELIEF, alpha=0.3
        )
        axis.plot([0, 1], [0, 1], color=_MEASURED, lw=1)
        axis.set_xlim(0, 1.02)
        axis.set_ylim(0, 1.02)
        axis.set_title(name)
        axis.set_xlabel("measured speed, of that alone")
    axes[0][0].set_ylabel("predicted")
    save(pyplot, figure, path)
    return "Speed with others over speed alone: predicted from what was known of each alone, against measurements."


def _error(plot: SurfacePlot) -> float:
    errors = [relative(plot.surface.latency(share / 100, 1), latency) for share, latency in plot.measured.items()]
    return sorted(errors)[len(errors) // 2]


def _draw_latency(pyplot: Any, path: Path, evidence: PredictorEvidence) -> str:
    ranked = sorted(evidence.curves, key=lambda estimate: (_error(estimate), estimate.name))
    shown = {"a tenth are better": ranked[len(ranked) // 10], "median": ranked[len(ranked) // 2], "worst": ranked[-1]}
    figure, axes = pyplot.subplots(1, 3, figsize=(13, 4))
    for axis, (title, curve) in zip(axes, shown.items(), strict=True):
        shares = sorted(curve.measured)
        predicted = [curve.surface.at(share / 100, 1) for share in shares]
        axis.plot(shares, [estimate.point for estimate in predicted], color=_BELIEF, label="predicted")
        axis.fill_between(
            shares,
            [estimate.low for estimate in predicted],
            [estimate.high for estimate in predicted],
            color=_BELIEF,
            alpha=0.15,
        )
        axis.plot(shares, [curve.measured[share] for share in shares], "o", color=_MEASURED, ms=4, label="measured")
        fitted_points = [point for point in curve.surface.points if point.batch == 1]
        axis.plot(
            [100 * estimate.share for estimate in fitted_points],
            [estimate.latency for estimate in fitted_points],
            "D",
            color=_KNOWN,
            label="known to it",
        )
        axis.set_title(f"{title}: {curve.name}")
        axis.set_xlabel("share of the SMs, %")
        axis.set_ylim(bottom=0)
    axes[0].set_ylabel("latency at batch 1, ms")
    axes[0].legend()
    save(pyplot, figure, path)
    return "Latency alone of models not fitted, from five points each (two of them at batch 8); intervals of 90 %."


def _draw_load(pyplot: Any, path: Path, evidence: PredictorEvidence) -> str:
    figure, axes = pyplot.subplots(len(evidence.windows), 1, figsize=(11, 2.4 * len(evidence.windows)), squeeze=False)
    for (axis,), (name, windows) in zip(axes, evidence.windows.items(), strict=True):
        last_windows = windows[-_WINDOWS:]
        indices = list(range(len(last_windows)))
        axis.plot(indices, [window.requests for window in last_windows], ".", color=_MEASURED, label="came")
        axis.plot(indices, [window.point for window in last_windows], color=_BELIEF, label="predicted")
        axis.fill_between(
            indices,
            [window.low for window in last_windows],
            [window.high for window in last_windows],
            color=_BELIEF,
            alpha=0.15,
        )
        axis.set_title(name)
    axes[0][0].legend()
    save(pyplot, figure, path)
    return "Requests in each window, and the prediction from those before; the last windows of each trace."
