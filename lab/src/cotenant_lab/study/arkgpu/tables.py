"""Terminal tables of study `arkgpu`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rich.console import Console
from rich.text import Text

from cotenant.cli.render.tables import table
from cotenant_lab.study.arkgpu.live import LiveResult
from cotenant_lab.study.arkgpu.peak import Peaks
from cotenant_lab.study.arkgpu.report import ArkgpuPaper, ArkgpuReport
from cotenant_lab.study.arkgpu.run import MODES, ArkSimulation
from cotenant_lab.study.arkgpu.steady import SteadyResult
from cotenant_lab.study.arkgpu.steps import StepQuality
from cotenant_lab.study.claim import show_claims
from cotenant_lab.study.muxflow_node.run import Distribution

_NAMES: Final = {
    "throughput_vs_mps_pct": "throughput over MPS, %",
    "goodput_vs_exclusive_pct": "goodput over exclusive, %",
    "goodput_vs_mps_pct": "goodput over MPS, %",
    "throughput_vs_mps_priority_pct": "throughput over MPS with priorities, %",
    "goodput_vs_mps_priority_pct": "goodput over MPS with priorities, %",
    "throughput_bound_vs_mps_pct": "bound of throughput over MPS, %",
    "goodput_bound_vs_exclusive_pct": "bound of goodput over exclusive, %",
    "goodput_bound_vs_mps_pct": "bound of goodput over MPS, %",
    "goodput_fastest_vs_exclusive_pct": "goodput with the fastest training, over exclusive, %",
    "goodput_fastest_vs_mps_pct": "goodput with the fastest training, over MPS, %",
}
_SPREAD: Final = ["MIN", "MEDIAN", "P90", "MAX"]
_MISSED_MOST: Final = 12


def show_arkgpu(console: Console, report: ArkgpuReport) -> None:
    """Print the report of `cotenant-lab study arkgpu`."""
    _show_modes(console, report.simulated)
    _show_against(console, report)
    _show_losses(console, report.simulated)
    _show_missed(console, report)
    _show_peaks(console, report.peaks)
    _show_steps(console, report.steps)
    _show_steady(console, report.steady)
    if report.live:
        _show_live(console, report.live)
    show_claims(console, report.claims)
    for target, met in report.met.items():
        console.print(Text(f"{target}: {'met' if met else 'missed'}", style="green" if met else "bold red"))


def _show_modes(console: Console, simulated: ArkSimulation) -> None:
    rows: list[list[str | Text]] = [
        [
            mode,
            f"{simulated.attained[mode]} of {simulated.attainable}",
            f"{simulated.modes[mode]['attainment'].mean:.3f}",
            f"{simulated.modes[mode]['service_ratio'].median:.2f}",
            f"{simulated.modes[mode]['p99_ratio'].median:.2f}" if "p99_ratio" in simulated.modes[mode] else "",
            str(simulated.unbounded[mode]),
            f"{simulated.modes[mode]['offline'].median:.2f}",
            f"{simulated.modes[mode]['goodput'].median:.2f}",
        ]
        for mode in MODES
    ]
    columns = ["MODE", "OBJECTIVE KEPT", "WITHIN", "SERVICE", "P99", "GROWING QUEUES", "OFFLINE", "GOODPUT"]
    title = f"simulated, {len(simulated.cases)} cases: medians (WITHIN: mean), per device; times over those alone"
    console.print(table(title, columns, rows))
    console.print()


def _show_losses(console: Console, simulated: ArkSimulation) -> None:
    rows: list[list[str | Text]] = [
        [loss.cases, str(loss.count), f"{loss.missed:.3f}", f"{loss.contention:.3f}", f"{loss.protection:.3f}"]
        for loss in simulated.losses
    ]
    columns = ["CASES", "NUMBER", "MISSED OBJECTIVES", "CONTENTION", "PROTECTION"]
    console.print(table("goodput that cotenant loses of devices for each tenant, means", columns, rows))
    console.print()


def _show_against(console: Console, report: ArkgpuReport) -> None:
    metrics = {_NAMES[name]: distribution for name, distribution in report.simulated.against.items()}
    console.print(_distributions("simulated: cotenant against others, % increase", metrics))
    paper = ArkgpuPaper()
    text = (
        f"{paper.source}, as published (real V100s, other programs): "
        f"throughput over MPS +{paper.throughput_vs_mps_pct} %, "
        f"goodput over exclusive +{paper.goodput_vs_exclusive_pct} %, over MPS +{paper.goodput_vs_mps_pct} %"
    )
    console.print(Text(text))
    console.print()


def _show_missed(console: Console, report: ArkgpuReport) -> None:
    if not report.missed:
        return
    rows: list[list[str | Text]] = [
        [
            f"{missed.exclusive:.3f}",
            f"{missed.cotenant:.3f}",
            f"{missed.mps_priority:.3f}",
            f"{missed.services_only:.3f}",
            f"{missed.objective}x: {missed.name.replace('train ', '')}",
        ]
        for missed in sorted(report.missed, key=lambda missed: missed.cotenant)[:_MISSED_MOST]
    ]
    columns = ["EXCLUSIVE", "COTENANT", "MPS-PRIO", "NO TRAINING", "CASE"]
    title = f"objectives that exclusive keeps and cotenant does not: {len(report.missed)}, the worst"
    console.print(table(title, columns, rows))
    console.print()


def _show_peaks(console: Console, peaks: Peaks) -> None:
    rows: list[list[str | Text]] = [
        [
            mode,
            f"{peaks.peak[mode].min:.2f} to {peaks.peak[mode].max:.2f}, median {peaks.peak[mode].median:.2f}",
            f"{peaks.sustained[mode].median:.2f}",
            f"{peaks.sustained_none[mode]} of {len(peaks.cases)}",
        ]
        for mode in peaks.peak
    ]
    columns = ["MODE", "HIGHEST RATE WITHIN", "99 % UP TO", "NONE SUSTAINED"]
    console.print(table("rising load, fraction of the rate one by one", columns, rows))
    console.print(_distributions("", {"highest rate within, cotenant over MPS, %": peaks.peak_vs_mps_pct}))
    console.print()


def _show_steps(console: Console, steps: StepQuality) -> None:
    for direction, metrics in steps.metrics.items():
        console.print(_distributions(f"after the load steps {direction}", metrics))
    unsettled = [step for step in steps.steps if not step.is_settled]
    console.print(Text(f"steps: {len(steps.steps)}, of which {len(unsettled)} had not settled at the next step"))
    console.print()


def _show_steady(console: Console, steady: list[SteadyResult]) -> None:
    rows: list[list[str | Text]] = []
    for title, by_kernels in (("recorded windows", False), ("kernels throughout", True)):
        group = [mix for mix in steady if mix.by_kernels == by_kernels]
        if group:
            rows.append(
                [
                    title,
                    str(len(group)),
                    str(max(mix.changes for mix in group)),
                    str(max(mix.swings for mix in group)),
                    str(sum(mix.is_cycle for mix in group)),
                    f"{min(mix.attainment for mix in group):.3f}",
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


def _show_live(console: Console, live: list[LiveResult]) -> None:
    for case in live:
        rows: list[list[str | Text]] = [
            [
                mode,
                f"{result.attainment:.3f}",
                f"{result.p99_ms:.2f}ms",
                f"{result.within_per_s:.1f}",
                f"{result.delay_ms:.3f}ms",
                f"{result.offline:.2f}",
                f"{result.goodput:.2f}",
            ]
            for mode, result in case.modes.items()
        ]
        title = f"live: {case.name}, objective {case.slo_ms:.1f}ms, {len(case.changes)} changes of the share"
        columns = ["MODE", "WITHIN", "P99", "WITHIN/S", "DEVICE DELAY", "OFFLINE", "GOODPUT"]
        console.print(table(title, columns, rows))
        console.print()


def _distributions(title: str, metrics: Mapping[str, Distribution]) -> object:
    rows: list[list[str | Text]] = [
        [
            name,
            *(
                f"{value:.2f}"
                for value in (
                    distribution.min,
                    distribution.median,
                    distribution.p90,
                    distribution.max,
                )
            ),
        ]
        for name, distribution in metrics.items()
    ]
    return table(title, ["METRIC", *_SPREAD], rows)
