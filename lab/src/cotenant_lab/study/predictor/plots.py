"""Plots of study `predictor`: SVG files and an HTML page."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cotenant_lab.study.device.plots import drawing, plots_page, save
from cotenant_lab.study.predictor.run import PredictorEvidence, PredictorReport

_BELIEF, _MEASURED = "#1f6fb4", "#444444"


def plotter(directory: Path) -> Callable[[PredictorReport, PredictorEvidence], None]:
    """Return a function that draws into this directory; raise ConfigError now if drawing is impossible."""
    begin = drawing(directory)

    def draw(report: PredictorReport, evidence: PredictorEvidence) -> None:
        with begin() as pyplot:
            captions = {"speeds.svg": _draw_speeds(pyplot, directory / "speeds.svg", evidence)}
        rows = "".join(
            f"<tr><td>{html.escape(result.name)}<td>{result.of}<td>{result.kept.n:,}<td>{result.kept.median:.1%}"
            f"<td>{result.kept.p90:.1%}<td>{result.within:.1%}</tr>"
            for result in report.results
        )
        head = "<tr><th>measured by<th>of<th>cases<th>median error<th>p90<th>within the bound of 95 %</tr>"
        text = f"cotenant-lab study predictor, seed {report.seed}, {report.kept}"
        page = plots_page("Predicted speeds against measurements", text, head, rows, captions)
        (directory / "index.html").write_text(page, encoding="utf-8")

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
