"""The live part of bench `fill`: offline speed at a given online p99, its spread, and next to an idle holder."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from cotenant.errors import CotenantError
from cotenant.harness.harness import NodePolicy, SharingHarness
from cotenant.harness.run import Mode, SharingRun
from cotenant.units.instant import MILLISECOND_NS
from cotenant.workload.load import Workload, periodic
from cotenant_lab.bench.fill.frontier import SettingResult, cells_of
from cotenant_lab.bench.fill.pairs import Pair

SPREAD_RUNS: Final = 10
QUICK_SPREAD_RUNS: Final = 4
_IDLE_PERIOD_NS: Final = 400 * MILLISECOND_NS
_IDLE_REQUESTS: Final = 5
_ALONE_S: Final = 0.5
TARGETS: Final = {"live_min": 0.95, "offline_spread": 0.10, "idle_holder_offline": 0.95}
ReportLine = Callable[[str], None]


class LiveSetting(msgspec.Struct, frozen=True, kw_only=True):
    """One way to share that runs live."""

    name: str
    mode: Mode
    policy: NodePolicy = NodePolicy()
    offline_environ: Mapping[str, str] = msgspec.field(default_factory=dict)


SETTINGS: Final = (
    LiveSetting(name="time slices", mode="slices"),
    LiveSetting(name="MPS", mode="mps"),
    LiveSetting(name="MPS with priorities", mode="mps priorities"),
    *(
        LiveSetting(
            name=f"MPS with priorities, {percent}% of the SMs",
            mode="mps priorities",
            offline_environ={"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent)},
        )
        for percent in (25, 50, 75)
    ),
    LiveSetting(name="cotenant slices", mode="cotenant slices"),
    LiveSetting(name="cotenant mps", mode="cotenant mps"),
    LiveSetting(name="cotenant mps, delay 25%", mode="cotenant mps", policy=NodePolicy(delay="25%")),
    *(
        LiveSetting(name=f"cotenant mps, sms {percent}%", mode="cotenant mps", policy=NodePolicy(sms=f"{percent}%"))
        for percent in (25, 50, 75)
    ),
    LiveSetting(name="cotenant mps, gate open", mode="cotenant mps", policy=NodePolicy(gate="open")),
)


class LiveCell(msgspec.Struct, frozen=True, kw_only=True):
    """One pair at one limit; `vs_best_simple` is None if no simple mode is within the limit."""

    pair: str
    limit: float
    simple: str
    cotenant: str
    vs_best_simple: float | None


class LiveFrontier(msgspec.Struct, frozen=True, kw_only=True):
    """The live cells, and the smallest and the median ratio."""

    min: float
    median: float
    cells: list[LiveCell]
    failed: list[str]


def measure_live_cells(harness: SharingHarness, pairs: Sequence[Pair], rounds: int, report: ReportLine) -> LiveFrontier:
    """Run every pair in every setting; ratios are medians over the rounds, each against runs alone in its round."""
    cells: list[LiveCell] = []
    failed: list[str] = []
    for index, pair in enumerate(pairs, start=1):
        ratios: dict[str, list[tuple[float, float, float]]] = {}
        for number in range(1, rounds + 1):
            report(f"live, pair {index} of {len(pairs)}, round {number} of {rounds}: {pair.name}")
            _measure_round(harness, pair, ratios, failed)
        results = [
            SettingResult(
                mode=name,
                is_cotenant=name.startswith("cotenant"),
                p99_ratio=p99,
                mean_ratio=mean,
                delay_ratio=0.0,
                offline_vs_alone=offline,
            )
            for name, values in ratios.items()
            for p99, mean, offline in [tuple(statistics.median(column) for column in zip(*values, strict=True))]
        ]
        cells += [
            LiveCell(
                pair=pair.name,
                limit=cell.limit,
                simple=cell.simple,
                cotenant=cell.cotenant,
                vs_best_simple=cell.vs_best_simple,
            )
            for cell in cells_of(pair.name, results)
        ]
    compared = [cell.vs_best_simple for cell in cells if cell.vs_best_simple is not None]
    return LiveFrontier(
        min=min(compared, default=0.0),
        median=statistics.median(compared) if compared else 0.0,
        cells=cells,
        failed=failed,
    )


def _measure_round(
    harness: SharingHarness, pair: Pair, ratios: dict[str, list[tuple[float, float, float]]], failed: list[str]
) -> None:
    alone = harness.play("alone", pair.online, None)
    offline_speed = _speed(harness.play("offline alone", None, pair.offline, _ALONE_S))
    for setting in SETTINGS:
        try:
            harness.set_policy(setting.policy)
            harness.offline_environ = setting.offline_environ
            run = harness.play(setting.mode, pair.online, pair.offline)
        except CotenantError as error:
            failed.append(f"{pair.name}, {setting.name}: {error}")
            continue
        finally:
            harness.offline_environ = {}
        ratios.setdefault(setting.name, []).append(
            (
                run.latency_p99_ns / alone.latency_p99_ns,
                run.latency_sum_ns / alone.latency_sum_ns,
                _speed(run) / offline_speed,
            )
        )


def measure_spread(harness: SharingHarness, pair: Pair, runs: int, report: ReportLine) -> float:
    """Return (max - min) / median of the offline speed over runs of the same load with default settings."""
    harness.set_policy(NodePolicy())
    speeds = []
    for number in range(1, runs + 1):
        report(f"spread, run {number} of {runs}: {pair.name}")
        speeds.append(_speed(harness.play("cotenant mps", pair.online, pair.offline)))
    return (max(speeds) - min(speeds)) / statistics.median(speeds)


def measure_idle_holder(harness: SharingHarness, pair: Pair, rounds: int, report: ReportLine) -> float:
    """Return the offline speed next to a holder with one request in 400 ms, over that alone."""
    harness.set_policy(NodePolicy())
    holder: Workload = msgspec.structs.replace(
        pair.online, name=f"{pair.online.name}, rare", arrival=periodic(_IDLE_PERIOD_NS), requests=_IDLE_REQUESTS
    )
    harness.record(holder)
    ratios = []
    for number in range(1, rounds + 1):
        report(f"idle holder, round {number} of {rounds}: {pair.name}")
        alone = _speed(harness.play("offline alone", None, pair.offline, _ALONE_S))
        ratios.append(_speed(harness.play("cotenant mps", holder, pair.offline)) / alone)
    return statistics.median(ratios)


def _speed(run: SharingRun) -> float:
    """Return the completed offline kernel time per time."""
    return run.offline_done_ns / max(run.wall_ns, 1)
