"""Evaluate pairs of loads under default sharing, under the gate and under the oracle, in simulated time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from cotenant.gate.rules import GateRules
from cotenant.harness.run import Mode, SharingRun
from cotenant.simulate.kernels import Policy, RunSettings, Tenant, plan_oracle, play, play_alone
from cotenant.softgpu.sim.host import Costs
from cotenant.softgpu.sim.results import DeviceRun
from cotenant.units.instant import MILLISECOND_NS
from cotenant.workload.load import Workload
from cotenant_lab.bench.fill.metrics import (
    COTENANT,
    PairMetrics,
    Range,
    offline_rate,
    pair_metrics,
    range_of,
    ranges_of,
    same_window_ratio,
)
from cotenant_lab.bench.fill.pairs import Pair
from cotenant_lab.study.workers import mapping

OFFLINE_ALONE_NS: Final = 200 * MILLISECOND_NS
ONLINE_PRIORITY: Final = 1
OFFLINE_PRIORITY: Final = 7
BOUNDED: Final = "slices"
"""The sharing in which nothing exceeds the oracle."""
WORTH_FILLING: Final = 0.01
"""Fraction of the time: a pair in which even the oracle fills less has nothing to fill."""
PRIORITIES: Final = "mps priorities"
"""MPS with client priorities and no gate."""
SHARED: Final[dict[Mode, Policy]] = {
    "slices": "open-slice",
    "mps": "open-mps",
    PRIORITIES: "open-gate",
    "cotenant slices": "fill-slice",
    "cotenant mps": "fill",
}
PAPER: Final[dict[str, str]] = {
    "online_speedup_vs_sharing": "1.33 to 14.87, more than half above 3.5",
    "offline_ratio_vs_sharing": "0.84 to 1",
    "cost": "below 10 %",
}
"""Results that FIKIT published, measured on real GPUs with other programs."""

Progress: TypeAlias = Callable[[str, int, int], None]


class FikitCase(msgspec.Struct, frozen=True, kw_only=True):
    """A pair to evaluate, with its parameters."""

    pair: Pair
    jitter_ppm: int = Costs().jitter_ppm
    rules: GateRules = GateRules()


class FikitResult(msgspec.Struct, frozen=True, kw_only=True):
    """One pair: the metrics of `bench fill`, and a comparison with the oracle at the same delay."""

    metrics: PairMetrics
    gap_ratio: float
    """Fraction of the online program's time alone in which none of its work is on the device."""
    delay_of_wall: dict[str, float]
    """By sharing: time that its kernels waited, over its whole time alone, including pauses between requests."""
    fill_vs_oracle: dict[str, float]
    """By time slices: offline kernel time over the oracle's at the same delay. Under MPS the oracle, which never runs
    kernels at the same time, is no bound."""
    oracle_vs_wall: dict[str, float]
    """Offline kernel time of the oracle over the time of the run: the time that could be filled."""
    filled_gaps: dict[str, int]
    speedup_vs_priorities: float
    """Of the online program, over MPS with client priorities."""
    offline_vs_priorities: float
    """Offline kernel time until the slower of the two online runs ends, over that under MPS with client priorities."""
    spun: dict[str, float]
    """Fraction of a processor that the offline program spent spinning."""


class FikitGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Cases of one kind, and the ranges of their metrics."""

    name: str
    cases: list[FikitResult]
    metrics: dict[str, Range]
    fast_fraction: dict[str, float]
    """By sharing: fraction of pairs whose online program is more than 3.5 times as fast as under default sharing."""


def evaluate(case: FikitCase, setting: RunSettings) -> FikitResult:
    """Run one case in all modes; the result depends on the case and the setting alone."""
    setting = msgspec.structs.replace(
        setting, rules=case.rules, costs=msgspec.structs.replace(setting.costs, jitter_ppm=case.jitter_ppm)
    )
    pair = case.pair
    tenants = [
        Tenant(load=pair.online, priority=ONLINE_PRIORITY),
        Tenant(load=pair.offline, priority=OFFLINE_PRIORITY),
    ]
    alone = play_alone(pair.online, setting)
    runs: dict[Mode, SharingRun] = {
        "alone": measure_run("alone", alone),
        "offline alone": offline_alone(pair.offline, setting),
    }
    oracle: dict[str, float] = {}
    against: dict[str, float] = {}
    filled: dict[str, int] = {}
    spun: dict[str, float] = {}
    for mode, policy in SHARED.items():
        shared = play(policy, tenants, setting)
        played = shared.played
        runs[mode] = measure_run(mode, played)
        if mode not in COTENANT.values():
            continue
        sharing = mode.removeprefix("cotenant ")
        plan = plan_oracle(alone, pair.offline, setting, played.clients[0].delayed_ns, sliced=sharing == "slices")
        oracle[sharing] = plan.done_ns / alone.wall_ns
        if sharing == BOUNDED:
            against[sharing] = played.clients[1].done_ns / max(plan.done_ns, 1)
        filled[sharing] = shared.passes(2)
        spun[sharing] = shared.count("spun_ns") / played.end_ns
    gap_ns = sum(close_ns - open_ns for open_ns, close_ns in alone.gaps_ns)
    ours, prior = runs["cotenant mps"], runs[PRIORITIES]
    return FikitResult(
        metrics=pair_metrics(pair.name, pair.family, [runs]),
        gap_ratio=gap_ns / max(alone.wall_ns, 1),
        delay_of_wall={sharing: runs[mode].online_delayed_ns / alone.wall_ns for sharing, mode in COTENANT.items()},
        fill_vs_oracle=against,
        oracle_vs_wall=oracle,
        filled_gaps=filled,
        speedup_vs_priorities=prior.latency_sum_ns / ours.latency_sum_ns,
        offline_vs_priorities=same_window_ratio(ours, prior, offline_rate(runs["offline alone"])),
        spun=spun,
    )


def evaluate_all(
    cases: Mapping[str, Sequence[FikitCase]], setting: RunSettings, workers: int, progress: Progress
) -> dict[str, FikitGroup]:
    """Evaluate every case of every group; the number of workers does not change results."""
    groups = {}
    with mapping(workers) as mapped:
        for name, members in cases.items():
            results: list[FikitResult] = []
            progress(name, 0, len(members))
            for result in mapped(evaluate, members, [setting] * len(members)):
                results.append(result)
                progress(name, len(results), len(members))
            groups[name] = group_of(name, results)
    return groups


def group_of(name: str, results: Sequence[FikitResult]) -> FikitGroup:
    """Summarize the cases of a group."""
    metrics = ranges_of([result.metrics for result in results])
    fast_fraction = {}
    for name_of in ("speedup_vs_priorities", "offline_vs_priorities"):
        if (range_ := range_of([getattr(result, name_of) for result in results])) is not None:
            metrics[name_of] = range_
    for sharing in ("slices", "mps"):
        fillable = [result for result in results if result.oracle_vs_wall[sharing] >= WORTH_FILLING]
        columns = {
            "fill_vs_oracle": [result.fill_vs_oracle[sharing] for result in fillable if sharing == BOUNDED],
            "online_delay_of_wall": [result.delay_of_wall[sharing] for result in results],
            "spun": [result.spun[sharing] for result in results],
        }
        for metric, values in columns.items():
            if (range_ := range_of(values)) is not None:
                metrics[f"{metric}_{sharing}"] = range_
        speedups = [result.metrics.online_speedup_vs_sharing[sharing] for result in results]
        fast_fraction[sharing] = sum(value > 3.5 for value in speedups) / max(len(speedups), 1)
    return FikitGroup(name=name, cases=list(results), metrics=metrics, fast_fraction=fast_fraction)


def measure_run(mode: Mode, played: DeviceRun) -> SharingRun:
    """Convert a simulated run to the form of a live run."""
    online, *others = played.clients
    latencies = sorted(online.latencies_ns)
    return SharingRun(
        mode=mode,
        wall_ns=played.wall_ns,
        requests=online.requests,
        latency_sum_ns=sum(latencies),
        latency_p50_ns=round(statistics.median(latencies)),
        latency_p99_ns=latencies[min(round(0.99 * len(latencies)), len(latencies) - 1)],
        online_delayed_ns=online.delayed_ns,
        offline_done_ns=sum(client.done_ns for client in others),
        busy_ns=played.busy_ns,
        sm_ns=played.sm_ns,
    )


def offline_alone(offline: Workload, setting: RunSettings) -> SharingRun:
    """Run a training load alone on the device."""
    played = play_alone(offline, setting, for_ns=OFFLINE_ALONE_NS, seed=1)
    return SharingRun(
        mode="offline alone",
        wall_ns=played.wall_ns,
        offline_done_ns=played.clients[0].done_ns,
        busy_ns=played.busy_ns,
        sm_ns=played.sm_ns,
    )
