"""Plots of study `fikit`: SVG files and an HTML page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cotenant_lab.bench.fill.metrics import COTENANT
from cotenant_lab.study.device.plots import drawing, save, write_plots_page
from cotenant_lab.study.fikit.report import FikitReport, RulePoint
from cotenant_lab.study.fikit.run import BOUNDED

_COLOURS = {"slices": "#d1495b", "mps": "#1f6fb4"}
_MARKS = ("o", "s", "^", "D")


def plotter(directory: Path) -> Callable[[FikitReport], None]:
    """Return a function that draws into this directory; raise ConfigError now if drawing is impossible."""
    draw = drawing(directory)

    def into_files(report: FikitReport) -> None:
        with draw() as pyplot:
            captions = {
                "speedups.svg": _draw_speedups(pyplot, directory / "speedups.svg", report),
                "oracle.svg": _draw_oracle(pyplot, directory / "oracle.svg", report),
                "bounds.svg": _draw_curve(pyplot, directory / "bounds.svg", report, "bound"),
                "delays.svg": _draw_curve(pyplot, directory / "delays.svg", report, "delay"),
            }
        rows = "".join(
            f"<tr><td>{name}<td>{metric}<td>{range_.min:.3f}<td>{range_.median:.3f}<td>{range_.max:.3f}</tr>"
            for name, group in report.groups.items()
            for metric, range_ in group.metrics.items()
        )
        head = "<tr><th>group<th>metric<th>min<th>median<th>max</tr>"
        write_plots_page(
            directory,
            "Gap filling in simulation",
            f"cotenant-lab study fikit, seed {report.seed}",
            head,
            rows,
            captions,
            report.met,
        )

    return into_files


def _draw_speedups(pyplot: Any, path: Path, report: FikitReport) -> str:
    figure, axes = pyplot.subplots(1, 2, figsize=(12, 4.2))
    cases = [case for group in report.groups.values() for case in group.cases]
    for sharing, mode in COTENANT.items():
        speedups = sorted(case.metrics.online_speedup_vs_sharing[sharing] for case in cases)
        delays = sorted(100 * case.metrics.online_delay_ratio[mode] for case in cases)
        parts = [100 * (rank + 1) / len(cases) for rank in range(len(cases))]
        axes[0].step(speedups, parts, where="post", color=_COLOURS[sharing], label=f"against {sharing}")
        axes[1].step(delays, parts, where="post", color=_COLOURS[sharing], label=sharing)
    axes[0].axvspan(1.33, 14.87, color="#888888", alpha=0.15, label="FIKIT: 1.33 to 14.87")
    axes[0].axvline(3.5, color="#444444", ls=":", label="FIKIT: half above 3.5")
    axes[0].set_xscale("log")
    axes[0].set_xlabel("online speedup over default sharing")
    axes[1].axvline(2, color="#444444", ls=":", label="2 %")
    axes[1].set_xlabel("online delay, % of its time alone")
    for axis in axes:
        axis.set_ylabel("cases with at most this, %")
        axis.legend(loc="lower right")
    save(pyplot, figure, path)
    return f"Speedups and delays of the online program, {len(cases)} cases."


def _draw_oracle(pyplot: Any, path: Path, report: FikitReport) -> str:
    figure, axis = pyplot.subplots(figsize=(8, 4.6))
    for (name, group), mark in zip(report.groups.items(), _MARKS, strict=False):
        axis.plot(
            [100 * case.gap_ratio for case in group.cases],
            [case.fill_vs_oracle[BOUNDED] for case in group.cases],
            mark,
            color=_COLOURS[BOUNDED],
            ms=4,
            alpha=0.5,
            label=name,
        )
    axis.axhline(0.9, color="#444444", ls=":", label="0.9")
    axis.set_ylim(0, 1.5)
    axis.set_xlabel("gaps of the online program alone, % of its time")
    axis.set_ylabel("offline kernel time, fill over oracle")
    axis.legend(fontsize=8)
    save(pyplot, figure, path)
    return "Offline kernel time of fill over the oracle's at the same delay, by the fraction of gaps."


def _draw_curve(pyplot: Any, path: Path, report: FikitReport, rule: str) -> str:
    figure, axes = pyplot.subplots(1, 2, figsize=(12, 4.2))
    points = [point for point in report.curve if point.rule == rule]
    lines: dict[tuple[str, str], list[RulePoint]] = {}
    for point in points:
        lines.setdefault((point.pair, point.sharing), []).append(point)
    for (pair, sharing), line in lines.items():
        values = [point.value if rule == "bound" else 100 * point.value for point in line]
        style = "-o" if sharing == "mps" else "--s"
        axes[0].plot(
            values, [100 * point.online_delay_ratio for point in line], style, ms=4, label=f"{pair}, {sharing}"
        )
        axes[1].plot(values, [100 * point.offline_vs_alone for point in line], style, ms=4)
    label = "bound D, us" if rule == "bound" else "allowed delay, % of the time"
    for axis, title in zip(axes, ("online delay, %", "offline throughput, % of alone"), strict=True):
        axis.set_xlabel(label)
        axis.set_ylabel(title)
    axes[0].legend(fontsize=7)
    save(pyplot, figure, path)
    return f"Online delay and offline throughput over the {label}."
