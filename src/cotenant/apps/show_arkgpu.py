"""How does the lab's judgement of control look in a terminal?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rich.console import Console
from rich.text import Text

from cotenant.apps.show import table
from cotenant.experiment.lab.arkgpu import WAYS, Simulated
from cotenant.experiment.lab.arkgpu_live import LiveTold
from cotenant.experiment.lab.arkgpu_peak import Peaks
from cotenant.experiment.lab.arkgpu_report import Published, Report
from cotenant.experiment.lab.arkgpu_steady import Rest
from cotenant.experiment.lab.arkgpu_steps import Quality
from cotenant.experiment.lab.muxflow import Distribution

_NAMES: Final = {
    "throughput_vs_mps_pct": "throughput over MPS, %",
    "goodput_vs_exclusive_pct": "goodput over exclusive, %",
    "goodput_vs_mps_pct": "goodput over MPS, %",
    "goodput_capacity_vs_exclusive_pct": "by capacity, over exclusive, %",
    "goodput_capacity_vs_mps_pct": "by capacity, over MPS, %",
}
_SPREAD: Final = ["MIN", "MEDIAN", "P90", "MAX", "MEAN"]
_MISSED_MOST: Final = 12


def show_arkgpu(console: Console, report: Report) -> None:
    """`cotenant lab arkgpu`."""
    _show_ways(console, report.simulated)
    _show_against(console, report)
    _show_missed(console, report)
    _show_peaks(console, report.peaks)
    _show_steps(console, report.steps)
    _show_steady(console, report.steady)
    if report.live:
        _show_live(console, report.live)
    for target, met in report.met.items():
        console.print(Text(f"{target}: {'met' if met else 'missed'}", style="green" if met else "bold red"))


def _show_ways(console: Console, simulated: Simulated) -> None:
    rows: list[list[str | Text]] = [
        [
            way,
            f"{simulated.attained[way]} of {simulated.attainable}",
            f"{simulated.ways[way]['attainment'].mean:.3f}",
            f"{simulated.ways[way]['p99_ratio'].median:.2f}",
            f"{simulated.ways[way]['offline'].median:.2f}",
            f"{simulated.ways[way]['goodput'].median:.2f}",
            f"{simulated.ways[way]['goodput_capacity'].median:.2f}",
        ]
        for way in WAYS
    ]
    columns = ["WAY", "OBJECTIVE KEPT", "WITHIN", "P99", "OFFLINE", "GOODPUT", "BY CAPACITY"]
    title = f"simulated, {len(simulated.cases)} cases: medians (WITHIN: mean), per device; P99 over that alone"
    console.print(table(title, columns, rows))
    console.print()


def _show_against(console: Console, report: Report) -> None:
    figures = {_NAMES[name]: one for name, one in report.simulated.against.items()}
    console.print(_distributions("simulated: cotenant against others, in percent above", figures))
    paper = Published()
    said = (
        f"{paper.source}, as published (real V100s, other programs): "
        f"throughput over MPS +{paper.throughput_vs_mps_pct} %, "
        f"goodput over exclusive +{paper.goodput_vs_exclusive_pct} %, over MPS +{paper.goodput_vs_mps_pct} %"
    )
    console.print(Text(said))
    console.print()


def _show_missed(console: Console, report: Report) -> None:
    if not report.missed:
        return
    rows: list[list[str | Text]] = [
        [
            f"{one.exclusive:.3f}",
            f"{one.cotenant:.3f}",
            f"{one.mps_priority:.3f}",
            f"{one.services_only:.3f}",
            f"{one.objective}x: {one.name.replace('train ', '')}",
        ]
        for one in sorted(report.missed, key=lambda one: one.cotenant)[:_MISSED_MOST]
    ]
    columns = ["EXCLUSIVE", "COTENANT", "MPS-PRIO", "NO TRAINING", "CASE"]
    title = f"objectives that exclusive keeps and cotenant does not: {len(report.missed)}, the worst"
    console.print(table(title, columns, rows))
    console.print()


def _show_peaks(console: Console, peaks: Peaks) -> None:
    rows: list[list[str | Text]] = [
        [
            way,
            f"{peaks.peak[way].min:.2f} to {peaks.peak[way].max:.2f}, median {peaks.peak[way].median:.2f}",
            f"{peaks.sustained[way].median:.2f}",
            f"{peaks.sustained_none[way]} of {len(peaks.cases)}",
        ]
        for way in peaks.peak
    ]
    columns = ["WAY", "MOST WITHIN THE OBJECTIVE", "99 % UP TO", "NOT AT ALL"]
    console.print(table("rising load, of what a service answers one by one", columns, rows))
    console.print(_distributions("", {"most within, cotenant over MPS, %": peaks.peak_vs_mps_pct}))
    console.print()


def _show_steps(console: Console, steps: Quality) -> None:
    for way, figures in steps.figures.items():
        console.print(_distributions(f"after a step {way} of the load", figures))
    unsettled = [one for one in steps.steps if not one.is_settled]
    console.print(Text(f"steps: {len(steps.steps)}, of which {len(unsettled)} had not settled when the next one came"))
    console.print()


def _show_steady(console: Console, steady: list[Rest]) -> None:
    rows: list[list[str | Text]] = []
    for title, by_kernels in (("recorded windows", False), ("kernels throughout", True)):
        some = [one for one in steady if one.by_kernels == by_kernels]
        if some:
            rows.append(
                [
                    title,
                    str(len(some)),
                    str(max(one.changes for one in some)),
                    str(max(one.swings for one in some)),
                    str(sum(one.is_cycle for one in some)),
                    f"{min(one.attainment for one in some):.3f}",
                ]
            )
    columns = ["BY", "MIXES", "CHANGES", "SWINGS", "LIMIT CYCLES", "WITHIN"]
    console.print(
        table(
            "ten minutes of steady load: the worst of the mixes",
            columns,
            rows,
        )
    )
    console.print()


def _show_live(console: Console, live: list[LiveTold]) -> None:
    for one in live:
        rows: list[list[str | Text]] = [
            [
                way,
                f"{told.attainment:.3f}",
                f"{told.p99_ms:.2f}ms",
                f"{told.within_per_s:.1f}",
                f"{told.delay_ms:.3f}ms",
                f"{told.offline:.2f}",
                f"{told.goodput:.2f}",
            ]
            for way, told in one.ways.items()
        ]
        title = f"live: {one.name}, objective {one.slo_ms:.1f}ms, {len(one.changes)} changes of the share"
        columns = ["WAY", "WITHIN", "P99", "WITHIN/S", "DELAY BY BOOKS", "OFFLINE", "GOODPUT"]
        console.print(table(title, columns, rows))
        console.print()


def _distributions(title: str, figures: Mapping[str, Distribution]) -> object:
    rows: list[list[str | Text]] = [
        [name, *(f"{value:.2f}" for value in (one.min, one.median, one.p90, one.max, one.mean))]
        for name, one in figures.items()
    ]
    return table(title, ["FIGURE", *_SPREAD], rows)
