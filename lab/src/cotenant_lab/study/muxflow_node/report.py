"""Report of study `muxflow-node`: before and after sharing, the paper's results, and targets."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from cotenant.simulate.kernels import RunSettings
from cotenant.softgpu.costs import hardware, hardware_hosts
from cotenant_lab.bench.fill.pairs import MissingPair
from cotenant_lab.study.fikit.report import PRESET
from cotenant_lab.study.muxflow_node.cases import DAY, node_cases
from cotenant_lab.study.muxflow_node.live import LiveNode, NodeLiveCase, NodeLiveResult, evaluate_live, live_cases
from cotenant_lab.study.muxflow_node.run import P99_MOST, Distribution, NodeSimulation, distribution_of, evaluate_nodes
from cotenant_lab.study.progress import show_parts

PROTECTED: Final = "cotenant mps"
DELAY_MOST: Final = 0.05
HEALTHY: Final = "healthy"
ROUNDS: Final = 3
LIVE: Final = "live rounds"


class MuxflowPaper(msgspec.Struct, frozen=True):
    """Results that the paper reports for its cluster, in percent."""

    source: str = "MuxFlow, arXiv 2303.13803"
    utilization: tuple[int, int] = (26, 76)
    sm_activity: tuple[int, int] = (16, 33)
    memory: tuple[int, int] = (42, 48)
    online_slowdown: str = "less than 20 %"


class LiveResults(msgspec.Struct, frozen=True, kw_only=True):
    """The cases with real processes, and distributions of their metrics."""

    cases: list[NodeLiveResult]
    metrics: dict[str, Distribution]


class MuxflowNodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of study `muxflow-node`."""

    lab: str = "muxflow-node"
    seed: int
    quick: bool
    paper: MuxflowPaper = MuxflowPaper()
    day: dict[str, float]
    """Fraction of the day by level of the device time that a service requests."""
    simulated: NodeSimulation | None
    live: LiveResults | None
    left_out: list[MissingPair]
    met: dict[str, bool]


def live_of(cases: Sequence[NodeLiveResult]) -> LiveResults:
    """Summarize the live cases."""
    columns = {
        "utilization_before": [case.before.utilization for case in cases],
        "utilization_after": [case.after.utilization for case in cases],
        "sm_activity_before": [case.before.sm_activity for case in cases],
        "sm_activity_after": [case.after.sm_activity for case in cases],
        "memory_before": [case.memory_before for case in cases],
        "memory_after": [case.memory_after for case in cases],
        "delay_ratio": [case.delay_ratio for case in cases],
        "p99_ratio_own_clock": [case.p99_ratio_own_clock for case in cases],
        "offline_vs_alone": [case.offline_vs_alone for case in cases],
    }
    return LiveResults(cases=list(cases), metrics={name: distribution_of(values) for name, values in columns.items()})


def report_of(
    simulated: NodeSimulation | None,
    results: Sequence[NodeLiveResult],
    left_out: Sequence[MissingPair],
    seed: int,
    *,
    quick: bool,
) -> MuxflowNodeReport:
    """Build the report from the parts that were run; parts without cases have no targets."""
    live = live_of(results) if results else None
    met = {} if simulated is None else _met_simulated(simulated)
    return MuxflowNodeReport(
        seed=seed,
        quick=quick,
        day={f"{level:.2f}": part for level, part in DAY.items()},
        simulated=simulated,
        live=live,
        left_out=list(left_out),
        met=met if live is None else met | _met_live(live),
    )


def _met_simulated(simulated: NodeSimulation) -> dict[str, bool]:
    ratio = simulated.metrics[PROTECTED]["p99_ratio"]
    uses = [(case.before, case.after[PROTECTED]) for case in simulated.cases]
    return {
        "simulated: online p99 under MPS, median <= +5 %": ratio.median <= P99_MOST,
        "simulated: online p99 under MPS, max <= +5 %": ratio.max <= P99_MOST,
        "simulated: utilization rises in every case": all(
            after.utilization > before.utilization for before, after in uses
        ),
        "simulated: SM activity rises in every case": all(
            after.sm_activity > before.sm_activity for before, after in uses
        ),
    }


def _met_live(live: LiveResults) -> dict[str, bool]:
    cases, delay = live.cases, live.metrics["delay_ratio"]
    return {
        "live: online delay by the device's accounting, median <= 5 %": delay.median <= DELAY_MOST,
        "live: online delay by the device's accounting, max <= 5 %": delay.max <= DELAY_MOST,
        "live: utilization rises in every case": all(
            case.after.utilization > case.before.utilization for case in cases
        ),
        "live: SM activity rises in every case": all(
            case.after.sm_activity > case.before.sm_activity for case in cases
        ),
        "live: memory used rises in every case": all(case.memory_after > case.memory_before for case in cases),
        "live: who was evicted came back, in every case": all(case.evicted and case.came_back for case in cases),
        "live: the device is healthy afterwards": all(set(case.health) == {HEALTHY} for case in cases),
    }


def run_muxflow_node(
    directory: Path, seed: int, console: Console, report: Callable[[str], None], *, quick: bool
) -> MuxflowNodeReport:
    """Run the study with a progress bar on a terminal, or one line per part elsewhere."""
    cases, left_out = node_cases(directory, quick=quick)
    live_part, absent = live_cases(directory, quick=quick)
    left_out += absent
    for missing_pair in left_out:
        report(f"omitted: {missing_pair.name}: {missing_pair.why}")
    with show_parts(console, report, "to play") as progress:
        setting = RunSettings(device=hardware(PRESET), costs=hardware_hosts(), seed=seed)
        simulated = evaluate_nodes(cases, setting, os.cpu_count() or 1, progress) if cases else None
        results = _live(live_part, 1 if quick else ROUNDS, setting.device.sm_count, progress)
    return report_of(simulated, results, left_out, seed, quick=quick)


def _live(
    cases: Sequence[NodeLiveCase], rounds: int, sms: int, progress: Callable[[str, int, int], None]
) -> list[NodeLiveResult]:
    """Run the live part after the simulated one, whose processes would take CPU time from it."""
    if not cases:
        return []
    results: list[NodeLiveResult] = []
    done = 0

    def one_more() -> None:
        nonlocal done
        done += 1
        progress(LIVE, done, rounds * len(cases))

    progress(LIVE, 0, rounds * len(cases))
    with tempfile.TemporaryDirectory(prefix="cotenant-lab-") as home, LiveNode(Path(home)) as node:
        for case in cases:
            results.append(evaluate_live(node, case, rounds, sms, one_more))
    return results
