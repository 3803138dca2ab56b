"""Simulate use of the device and online latencies before and after sharing."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from cotenant.harness.run import Mode, SharingRun
from cotenant.simulate.kernels import RunSettings, Tenant, play, play_alone
from cotenant_lab.bench.fill.metrics import PairMetrics, pair_metrics
from cotenant_lab.study.fikit.run import (
    OFFLINE_PRIORITY,
    ONLINE_PRIORITY,
    SHARED,
    Progress,
    measure_run,
    offline_alone,
)
from cotenant_lab.study.muxflow_node.cases import DAY, NodeCase
from cotenant_lab.study.workers import mapping

PART: Final = "simulated"
P99_MOST: Final = 1.05
"""Target as a multiple of the online p99 alone."""


class DeviceUse(msgspec.Struct, frozen=True, kw_only=True):
    """Use of a device in a run, and latency of its online requests."""

    utilization: float
    """Fraction of the time with at least one block on the device."""
    sm_activity: float
    """Fraction of SMs times time with at least one block."""
    p99_ms: float
    requests: int


class NodeResult(msgspec.Struct, frozen=True, kw_only=True):
    """One case: the node with the service alone, and by sharing mode."""

    level: float
    metrics: PairMetrics
    before: DeviceUse
    after: dict[str, DeviceUse]
    p99_ratio: dict[str, float]
    """By mode: the online p99 over that alone, by the device's clock."""


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Distribution of a metric over cases."""

    min: float
    median: float
    p90: float
    max: float
    mean: float


class NodeDay(msgspec.Struct, frozen=True, kw_only=True):
    """Means of a node over the day, by metric, over the levels that its service reaches, weighted by their duration."""

    name: str
    before: dict[str, float]
    after: dict[str, dict[str, float]]


class NodeSimulation(msgspec.Struct, frozen=True, kw_only=True):
    """Results of all cases; distributions by mode and metric."""

    cases: list[NodeResult]
    metrics: dict[str, dict[str, Distribution]]
    day: dict[str, dict[str, Distribution]]
    within: dict[str, float]
    """By mode: fraction of the cases whose p99 is at most 5 % higher than alone."""


def use_of(run: SharingRun, sms: int) -> DeviceUse:
    """Return the use of the device in a run."""
    wall_ns = max(run.wall_ns, 1)
    return DeviceUse(
        utilization=run.busy_ns / wall_ns,
        sm_activity=run.sm_ns / (wall_ns * sms),
        p99_ms=run.latency_p99_ns / 1e6,
        requests=run.requests,
    )


def evaluate_node(case: NodeCase, setting: RunSettings) -> NodeResult:
    """Run one case in all modes; the result depends on the case and the setting alone."""
    pair = case.pair
    tenants = [
        Tenant(load=pair.online, priority=ONLINE_PRIORITY),
        Tenant(load=pair.offline, priority=OFFLINE_PRIORITY),
    ]
    runs: dict[Mode, SharingRun] = {
        "alone": measure_run("alone", play_alone(pair.online, setting)),
        "offline alone": offline_alone(pair.offline, setting),
    }
    runs |= {mode: measure_run(mode, play(policy, tenants, setting).played) for mode, policy in SHARED.items()}
    before = use_of(runs["alone"], setting.device.sm_count)
    after = {mode: use_of(runs[mode], setting.device.sm_count) for mode in SHARED}
    return NodeResult(
        level=case.level,
        metrics=pair_metrics(pair.name, pair.family, [runs]),
        before=before,
        after={str(mode): use for mode, use in after.items()},
        p99_ratio={mode: use.p99_ms / before.p99_ms for mode, use in after.items()},
    )


def evaluate_nodes(cases: Sequence[NodeCase], setting: RunSettings, workers: int, progress: Progress) -> NodeSimulation:
    """Evaluate every case; the number of workers does not change results."""
    results: list[NodeResult] = []
    progress(PART, 0, len(cases))
    with mapping(workers) as mapped:
        for result in mapped(evaluate_node, cases, [setting] * len(cases)):
            results.append(result)
            progress(PART, len(results), len(cases))
    return simulated_of(results)


def simulated_of(results: Sequence[NodeResult]) -> NodeSimulation:
    """Summarize all cases."""
    metrics: dict[str, dict[str, Distribution]] = {"before": _distributions(results, _BEFORE)}
    for mode in SHARED:
        metrics[mode] = _distributions(results, _after(mode))
    days = days_of(results)
    day = {"before": _columns([node_day.before for node_day in days])}
    day |= {mode: _columns([node_day.after[mode] for node_day in days]) for mode in SHARED}
    within = {mode: statistics.fmean(result.p99_ratio[mode] <= P99_MOST for result in results) for mode in SHARED}
    return NodeSimulation(
        cases=list(results), metrics=metrics, day=day, within={str(key): part for key, part in within.items()}
    )


def days_of(results: Sequence[NodeResult]) -> list[NodeDay]:
    """Return one node per service and training."""
    nodes: dict[str, list[NodeResult]] = {}
    for result in results:
        nodes.setdefault(result.metrics.name, []).append(result)
    return [
        NodeDay(
            name=name,
            before={metric: _weighted(node_results, metric_of) for metric, metric_of in _BEFORE.items()},
            after={
                mode: {metric: _weighted(node_results, metric_of) for metric, metric_of in _over_day(mode).items()}
                for mode in SHARED
            },
        )
        for name, node_results in nodes.items()
    ]


def distribution_of(values: Sequence[float]) -> Distribution:
    """Return the distribution of one or more values."""
    ordered = sorted(values)
    return Distribution(
        min=ordered[0],
        median=statistics.median(ordered),
        p90=ordered[min(int(0.9 * len(ordered)), len(ordered) - 1)],
        max=ordered[-1],
        mean=statistics.fmean(ordered),
    )


_Of = Callable[[NodeResult], float]
_BEFORE: Final[dict[str, _Of]] = {
    "utilization": lambda result: result.before.utilization,
    "sm_activity": lambda result: result.before.sm_activity,
}


def _over_day(mode: Mode) -> dict[str, _Of]:
    return {
        "utilization": lambda result: result.after[mode].utilization,
        "sm_activity": lambda result: result.after[mode].sm_activity,
        "offline_vs_alone": lambda result: result.metrics.offline_vs_alone[mode],
    }


def _after(mode: Mode) -> dict[str, _Of]:
    return {
        **_over_day(mode),
        "p99_ratio": lambda result: result.p99_ratio[mode],
        "delay_ratio": lambda result: result.metrics.online_delay_ratio[mode],
    }


def _distributions(results: Sequence[NodeResult], metrics: Mapping[str, _Of]) -> dict[str, Distribution]:
    return {name: distribution_of([metric_of(result) for result in results]) for name, metric_of in metrics.items()}


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, Distribution]:
    return {name: distribution_of([row[name] for row in rows]) for name in rows[0]}


def _weighted(results: Sequence[NodeResult], metric_of: _Of) -> float:
    weights = [DAY[result.level] for result in results]
    return statistics.fmean((metric_of(result) for result in results), weights)
