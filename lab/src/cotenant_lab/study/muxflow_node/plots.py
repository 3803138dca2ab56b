"""Plots of study `muxflow-node`: SVG files and an HTML page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cotenant_lab.study.device.plots import drawing, save, write_plots_page
from cotenant_lab.study.muxflow_node.report import PROTECTED, MuxflowNodeReport

_BEFORE, _AFTER, _PAPER = "#9aa5b1", "#1f6fb4", "#d1495b"
_MODES: Final = {"cotenant mps": "#1f6fb4", "cotenant slices": "#3a9a5b", "mps": "#d1495b", "slices": "#e8a33d"}


def plotter(directory: Path) -> Callable[[MuxflowNodeReport], None]:
    """Return a function that draws into this directory; raise ConfigError now if drawing is impossible."""
    draw = drawing(directory)

    def into_files(report: MuxflowNodeReport) -> None:
        with draw() as pyplot:
            captions = {"use.svg": _draw_use(pyplot, directory / "use.svg", report)}
            if report.simulated is not None:
                captions["p99.svg"] = _draw_p99(pyplot, directory / "p99.svg", report)
        rows = "".join(
            f"<tr><td>{part}<td>{mode}<td>{name}<td>{distribution.min:.3f}<td>{distribution.median:.3f}<td>{distribution.p90:.3f}"
            f"<td>{distribution.max:.3f}<td>{distribution.mean:.3f}</tr>"
            for part, groups in _parts(report).items()
            for mode, metrics in groups.items()
            for name, distribution in metrics.items()
        )
        head = "<tr><th>part<th>mode<th>metric<th>min<th>median<th>p90<th>max<th>mean</tr>"
        text = f"cotenant-lab study muxflow-node, seed {report.seed}; compare with {report.paper.source}"
        write_plots_page(directory, "Sharing on one node", text, head, rows, captions, report.met)

    return into_files


def _parts(report: MuxflowNodeReport) -> dict[str, dict[str, Any]]:
    parts: dict[str, dict[str, Any]] = {}
    if report.simulated is not None:
        parts |= {"simulated cases": report.simulated.metrics, "simulated days": report.simulated.day}
    if report.live is not None:
        parts["live"] = {"": report.live.metrics}
    return parts


def _draw_use(pyplot: Any, path: Path, report: MuxflowNodeReport) -> str:
    """Draw use before and after: simulated, live and published."""
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 4.2), sharey=True)
    for axis, (name, published) in zip(
        axes,
        {
            "utilization": report.paper.utilization,
            "sm_activity": report.paper.sm_activity,
            "memory": report.paper.memory,
        }.items(),
        strict=True,
    ):
        bars: dict[str, tuple[float, float]] = {}
        day = {} if report.simulated is None else report.simulated.day
        if day and name in day["before"]:
            bars["simulated day"] = (100 * day["before"][name].mean, 100 * day[PROTECTED][name].mean)
        if report.live is not None:
            metrics = report.live.metrics
            bars["live"] = (100 * metrics[f"{name}_before"].mean, 100 * metrics[f"{name}_after"].mean)
        bars["MuxFlow"] = (float(published[0]), float(published[1]))
        for index, (before, after) in enumerate(bars.values()):
            axis.bar(index - 0.2, before, 0.38, color=_BEFORE, label="before" if not index else None)
            axis.bar(index + 0.2, after, 0.38, color=_AFTER, label="after" if not index else None)
        axis.set_xticks(range(len(bars)), list(bars))
        axis.set_title(name.replace("_", " "))
    axes[0].set_ylabel("of the device, mean, %")
    axes[0].legend()
    save(pyplot, figure, path)
    return "The device before and after sharing; the paper's are means over a cluster of real GPUs."


def _draw_p99(pyplot: Any, path: Path, report: MuxflowNodeReport) -> str:
    assert report.simulated is not None
    figure, axis = pyplot.subplots(figsize=(8, 4.4))
    cases = report.simulated.cases
    parts = [100 * (rank + 1) / len(cases) for rank in range(len(cases))]
    for mode, colour in _MODES.items():
        axis.step(sorted(case.p99_ratio[mode] for case in cases), parts, where="post", color=colour, label=mode)
    axis.axvline(1.05, color="#444444", ls=":", label="+5 %")
    axis.axvline(1.2, color=_PAPER, ls=":", label="MuxFlow: less than +20 %")
    axis.set_xscale("log")
    axis.set_xlabel("online p99 over that alone")
    axis.set_ylabel("cases with at most this, %")
    axis.legend(loc="lower right")
    save(pyplot, figure, path)
    return f"Online p99 after over before, {len(cases)} simulated cases."
