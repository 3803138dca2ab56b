"""Terminal tables of study `muxflow-node`."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from cotenant.cli.render.tables import table
from cotenant_lab.study.muxflow_node.report import PROTECTED, LiveResults, MuxflowNodeReport, MuxflowPaper
from cotenant_lab.study.muxflow_node.run import Distribution, NodeResult, NodeSimulation

_NAME_MOST = 14
_LIVE_NAME_MOST = 26


def show_muxflow_node(console: Console, report: MuxflowNodeReport) -> None:
    """Print the report of `cotenant-lab study muxflow-node`."""
    if report.simulated is not None:
        _show_simulated(console, report.simulated)
    if report.live is not None:
        _show_live(console, report.live)
    show_published(console, report.paper, "a cluster, real GPUs, other programs", report.met)


def show_published(console: Console, paper: MuxflowPaper, unlike: str, met: Mapping[str, bool]) -> None:
    """Print the paper's results, how its setup differs, and which targets are met."""
    results = [
        f"{name} {before} -> {after} %"
        for name, (before, after) in {
            "GPU utilization": paper.utilization,
            "SM activity": paper.sm_activity,
            "GPU memory": paper.memory,
        }.items()
    ]
    text = f"{paper.source}, as published ({unlike}): {', '.join(results)}, "
    console.print(Text(f"{text}online slowdown {paper.online_slowdown}"))
    for target, is_met in met.items():
        console.print(Text(f"{target}: {'met' if is_met else 'missed'}", style="green" if is_met else "bold red"))


def _show_simulated(console: Console, simulated: NodeSimulation) -> None:
    columns = ["SERVICE + TRAINING", "AT", "BUSY", "SMS", "P99", "OFFLINE"]
    rows: list[list[str | Text]] = [_row(case) for case in simulated.cases]
    console.print(table(f"simulated, {PROTECTED}", columns, rows))
    for name, groups in (("cases", simulated.metrics), ("means over a day", simulated.day)):
        _show_distributions(console, f"simulated: {name}", groups)
    parts = ", ".join(f"{part:.0%} ({mode})" for mode, part in simulated.within.items())
    console.print(Text(f"simulated cases with an online p99 at most 5 % higher than alone: {parts}"))
    console.print()


def _short(name: str) -> str:
    """Shorten the name in the middle: services differ in their beginnings, trainings in their ends."""
    service, _, training = name.partition(" + ")
    return f"{service[-_NAME_MOST:]} + {training.removeprefix('train ')}"


def _row(result: NodeResult) -> list[str | Text]:
    before, after = result.before, result.after[PROTECTED]
    return [
        _short(result.metrics.name),
        f"{result.level:.0%}",
        f"{before.utilization:.0%} -> {after.utilization:.0%}",
        f"{before.sm_activity:.0%} -> {after.sm_activity:.0%}",
        f"{result.p99_ratio[PROTECTED]:.3f}",
        f"{result.metrics.offline_vs_alone[PROTECTED]:.2f}",
    ]


def _show_live(console: Console, live: LiveResults) -> None:
    uses: list[list[str | Text]] = [
        [
            case.name[:_LIVE_NAME_MOST],
            f"{case.before.utilization:.0%} -> {case.after.utilization:.0%}",
            f"{case.before.sm_activity:.0%} -> {case.after.sm_activity:.0%}",
            f"{case.memory_before:.0%} -> {case.memory_after:.0%}",
            f"{case.offline_vs_alone:.2f}",
        ]
        for case in live.cases
    ]
    columns = ["SERVICE + TRAININGS", "UTILIZATION", "SM ACTIVITY", "MEMORY", "OFFLINE"]
    console.print(table("live, cotenant with MPS: use of the device", columns, uses))
    console.print()
    costs: list[list[str | Text]] = [
        [
            case.name[:_LIVE_NAME_MOST],
            f"{case.delay_ratio:.3f}",
            f"{case.p99_ratio_own_clock:.2f}",
            f"{case.evicted} in {case.rounds}{'' if case.came_back else ', not back'}",
            ", ".join(sorted(set(case.health))),
        ]
        for case in live.cases
    ]
    columns = ["SERVICE + TRAININGS", "DEVICE DELAY", "P99 OWN CLOCK", "EVICTED", "DEVICE"]
    console.print(table("live, cotenant with MPS: costs", columns, costs))
    console.print()
    _show_distributions(console, "live: cases", {"": live.metrics})


def _show_distributions(console: Console, title: str, groups: Mapping[str, Mapping[str, Distribution]]) -> None:
    rows: list[list[str | Text]] = [
        [
            mode,
            metric,
            *(
                f"{value:.3f}"
                for value in (
                    distribution.min,
                    distribution.median,
                    distribution.p90,
                    distribution.max,
                    distribution.mean,
                )
            ),
        ]
        for mode, metrics in groups.items()
        for metric, distribution in metrics.items()
    ]
    console.print(table(title, ["MODE", "METRIC", "MIN", "MEDIAN", "P90", "MAX", "MEAN"], rows))
    console.print()
