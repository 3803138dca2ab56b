"""Plots of study `predictor-node`: SVG files and an HTML page."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cotenant_lab.study.device.plots import drawing, plots_page, save
from cotenant_lab.study.error import relative
from cotenant_lab.study.predictor_node.latency import SurfacePlot
from cotenant_lab.study.predictor_node.run import PredictorNodeEvidence, PredictorNodeReport, all_comparisons

_BELIEF, _MEASURED, _KNOWN = "#1f6fb4", "#444444", "#d1495b"
_WINDOWS: Final = 120


def plotter(directory: Path) -> Callable[[PredictorNodeReport, PredictorNodeEvidence], None]:
    """Return a function that draws into this directory; raise ConfigError now if drawing is impossible."""
    begin = drawing(directory)

    def draw(report: PredictorNodeReport, evidence: PredictorNodeEvidence) -> None:
        with begin() as pyplot:
            captions = {
                "latency.svg": _draw_latency(pyplot, directory / "latency.svg", evidence),
                "together.svg": _draw_together(pyplot, directory / "together.svg", evidence),
                "load.svg": _draw_load(pyplot, directory / "load.svg", evidence),
            }
        rows = "".join(
            f"<tr><td>{html.escape(comparison.name)}<td>{comparison.errors.n:,}<td>{comparison.errors.median:.1%}<td>{comparison.errors.p90:.1%}"
            f"<td>{comparison.coverage:.1%}</tr>"
            for comparison in all_comparisons(report)
        )
        head = "<tr><th>predicted<th>held out<th>median error<th>p90<th>within intervals of 90 %</tr>"
        text = f"cotenant-lab study predictor-node, seed {report.seed}"
        page = plots_page("The predictor against measurements", text, head, rows, captions)
        (directory / "index.html").write_text(page, encoding="utf-8")

    return draw


def _error(plot: SurfacePlot) -> float:
    errors = [relative(plot.surface.latency(share / 100, 1), latency) for share, latency in plot.measured.items()]
    return sorted(errors)[len(errors) // 2]


def _draw_latency(pyplot: Any, path: Path, evidence: PredictorNodeEvidence) -> str:
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


def _draw_together(pyplot: Any, path: Path, evidence: PredictorNodeEvidence) -> str:
    figure, axes = pyplot.subplots(
        1, len(evidence.together), figsize=(4.4 * len(evidence.together), 4.4), squeeze=False
    )
    for axis, (name, cases) in zip(axes[0], evidence.together.items(), strict=True):
        axis.plot(
            [case.measured for case in cases], [case.estimate.point for case in cases], ".", color=_BELIEF, alpha=0.4
        )
        highest = max(max(case.measured, case.estimate.point) for case in cases)
        axis.plot([1, highest], [1, highest], color=_MEASURED, lw=1)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_title(name)
        axis.set_xlabel("measured slowdown")
    axes[0][0].set_ylabel("predicted slowdown")
    save(pyplot, figure, path)
    return "Slowdown by neighbours, of programs not fitted."


def _draw_load(pyplot: Any, path: Path, evidence: PredictorNodeEvidence) -> str:
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
