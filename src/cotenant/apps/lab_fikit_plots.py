"""How does the lab's judgement of gap filling look drawn? SVG files and a page that shows them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cotenant.apps.lab_plots import drawing, figures_page, save
from cotenant.experiment.fill.figures import COTENANT
from cotenant.experiment.lab.fikit_report import Point, Report

_COLOURS = {"slices": "#d1495b", "mps": "#1f6fb4"}
_MARKS = ("o", "s", "^", "D")


def plotter(directory: Path) -> Callable[[Report], None]:
    """What draws into this directory; ConfigError now, rather than after the work, where it cannot be done."""
    draw = drawing(directory)

    def into_files(report: Report) -> None:
        with draw() as pyplot:
            captions = {
                "speedups.svg": _draw_speedups(pyplot, directory / "speedups.svg", report),
                "oracle.svg": _draw_oracle(pyplot, directory / "oracle.svg", report),
                "bounds.svg": _draw_curve(pyplot, directory / "bounds.svg", report, "bound"),
                "delays.svg": _draw_curve(pyplot, directory / "delays.svg", report, "delay"),
            }
        rows = "".join(
            f"<tr><td>{name}<td>{figure}<td>{found.min:.3f}<td>{found.median:.3f}<td>{found.max:.3f}</tr>"
            for name, group in report.groups.items()
            for figure, found in group.figures.items()
        )
        head = "<tr><th>group<th>figure<th>min<th>median<th>max</tr>"
        page = figures_page(
            "Gap filling in the simulator", f"cotenant lab fikit, seed {report.seed}", head, rows, captions
        )
        (directory / "index.html").write_text(page, encoding="utf-8")

    return into_files


def _draw_speedups(pyplot: Any, path: Path, report: Report) -> str:
    figure, axes = pyplot.subplots(1, 2, figsize=(12, 4.2))
    cases = [one for group in report.groups.values() for one in group.cases]
    for sharing, mode in COTENANT.items():
        speedups = sorted(one.figures.online_speedup_vs_sharing[sharing] for one in cases)
        delays = sorted(100 * one.figures.online_delay_ratio[mode] for one in cases)
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


def _draw_oracle(pyplot: Any, path: Path, report: Report) -> str:
    figure, axis = pyplot.subplots(figsize=(8, 4.6))
    for (name, group), mark in zip(report.groups.items(), _MARKS, strict=False):
        for sharing, colour in _COLOURS.items():
            axis.plot(
                [100 * one.gap_ratio for one in group.cases],
                [one.fill_vs_oracle[sharing] for one in group.cases],
                mark,
                color=colour,
                ms=4,
                alpha=0.5,
                label=f"{name}, {sharing}",
            )
    axis.axhline(0.9, color="#444444", ls=":", label="0.9")
    axis.set_ylim(0, 1.5)
    axis.set_xlabel("gaps of the online program alone, % of its time")
    axis.set_ylabel("offline kernel time, fill over oracle")
    axis.legend(fontsize=8)
    save(pyplot, figure, path)
    return "What fill does of what the oracle does at the same delay, over how much there is to fill."


def _draw_curve(pyplot: Any, path: Path, report: Report, rule: str) -> str:
    figure, axes = pyplot.subplots(1, 2, figsize=(12, 4.2))
    points = [one for one in report.curve if one.rule == rule]
    lines: dict[tuple[str, str], list[Point]] = {}
    for one in points:
        lines.setdefault((one.pair, one.sharing), []).append(one)
    for (pair, sharing), line in lines.items():
        values = [one.value if rule == "bound" else 100 * one.value for one in line]
        style = "-o" if sharing == "mps" else "--s"
        axes[0].plot(values, [100 * one.online_delay_ratio for one in line], style, ms=4, label=f"{pair}, {sharing}")
        axes[1].plot(values, [100 * one.offline_vs_alone for one in line], style, ms=4)
    said = "bound D, us" if rule == "bound" else "delay allowed, % of the time"
    for axis, title in zip(axes, ("online delay, %", "offline throughput, % of alone"), strict=True):
        axis.set_xlabel(said)
        axis.set_ylabel(title)
    axes[0].legend(fontsize=7)
    save(pyplot, figure, path)
    return f"Online delay and offline throughput over the {said}."
