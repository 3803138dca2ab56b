"""Run services without a profile next to training, and compare with the same services with one."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.errors import CotenantError
from cotenant.harness.harness import PRESET, SharingHarness
from cotenant.simulate.kernels import ClockChange, Knowledge, RunSettings, SharedRun, Tenant, play
from cotenant.softgpu.costs import hardware
from cotenant.softgpu.sim.results import DeviceRun
from cotenant.units.instant import SECOND_NS
from cotenant.workload.load import Workload
from cotenant_lab.bench.cold.services import ColdService, cold_services, cold_training

RUN_NS: Final = 12 * SECOND_NS
QUICK_RUN_NS: Final = 4 * SECOND_NS
LIVE_RUN_NS: Final = 6 * SECOND_NS
WINDOW: Final = 30
"""Requests in a window; its median and 90th percentile are within the targets once the gate has settled."""
TARGETS: Final = {"online_p50_ratio": 1.05, "online_p99_ratio": 1.10, "offline_vs_profiled": 0.8, "settled_s": 5.0}
ReportLine = Callable[[str], None]


class ColdResult(msgspec.Struct, frozen=True, kw_only=True):
    """One service without a profile next to training."""

    name: str
    online_p50_ratio: float
    """Over the median latency alone, over all requests from the first on."""
    online_p99_ratio: float
    offline_vs_profiled: float
    """Speed of the training over its speed next to the same service with a profile."""
    offline_vs_alone: float
    settled_s: float
    """When the last window of requests ended that was above the targets; 0: there was none."""
    online_delay_ratio: float
    """Delay of its kernels by the training, as the device measured it, over the time of its requests alone."""


class LiveColdResult(msgspec.Struct, frozen=True, kw_only=True):
    """The same on a software GPU in real time."""

    name: str
    online_p50_ratio: float
    online_p99_ratio: float
    offline_vs_profiled: float


class ColdReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of `bench cold`."""

    bench: str = "cold"
    seconds: float
    services: list[ColdResult]
    live: list[LiveColdResult]
    live_left_out: dict[str, str]
    met: dict[str, bool]


def bench_cold(rounds: int, report: ReportLine, *, quick: bool = False, live: bool = True) -> ColdReport:
    """Run every service alone, without a profile, and with one."""
    run_ns = QUICK_RUN_NS if quick else RUN_NS
    setting = RunSettings(device=hardware(PRESET))
    training = cold_training()
    services = cold_services(run_ns)
    results = []
    for index, service in enumerate(services, start=1):
        report(f"service {index} of {len(services)} on the simulated device: {service.name}")
        results.append(measure(service, training, setting))
    live_results, left_out = _measure_live(training, rounds, report) if live and not quick else ([], {})
    return ColdReport(
        seconds=run_ns / SECOND_NS,
        services=results,
        live=live_results,
        live_left_out=left_out,
        met=targets_met(results),
    )


def targets_met(results: Sequence[ColdResult]) -> dict[str, bool]:
    """Return, by target, whether all services meet it."""
    return {
        name: all(
            getattr(result, name) >= limit if name == "offline_vs_profiled" else getattr(result, name) <= limit
            for result in results
        )
        for name, limit in TARGETS.items()
    }


def measure(service: ColdService, training: Workload, setting: RunSettings) -> ColdResult:
    """Run one service on the simulated device under MPS."""
    alone = run(service, None, setting, "exact").played
    cold = run(service, training, setting, "none").played
    profiled = run(service, training, setting, "profiled").played
    alone_ns, cold_ns = alone.clients[0].latencies_ns, cold.clients[0].latencies_ns
    training_index = service.processes
    return ColdResult(
        name=service.name,
        online_p50_ratio=statistics.median(cold_ns) / statistics.median(alone_ns),
        online_p99_ratio=quantile(cold_ns, 0.99) / quantile(alone_ns, 0.99),
        offline_vs_profiled=speed(cold, training_index) / max(speed(profiled, training_index), 1e-9),
        offline_vs_alone=speed(cold, training_index),
        settled_s=settled_s(alone_ns, cold_ns, cold),
        online_delay_ratio=cold.clients[0].delayed_ns / sum(alone_ns),
    )


def run(service: ColdService, training: Workload | None, setting: RunSettings, knowledge: Knowledge) -> SharedRun:
    """Run a service, with all its processes, next to a training program or alone."""
    tenants = [
        Tenant(
            load=service.load,
            priority=2,
            knowledge=knowledge,
            cycle=service.cycle,
            process_of=0 if index else -1,
        )
        for index in range(service.processes)
    ]
    if training is not None:
        tenants.append(Tenant(load=training, priority=7, knowledge="profiled"))
    change = ClockChange(service.drop_at_ns, service.clock_ppm) if service.drop_at_ns else None
    return play("fill", tenants, setting, change)


def speed(played: DeviceRun, index: int) -> float:
    """Return the completed kernel time of a client per time."""
    return played.clients[index].done_ns / played.wall_ns


def quantile(values: Sequence[int], fraction: float) -> int:
    """Return a quantile."""
    return sorted(values)[min(round(fraction * len(values)), len(values) - 1)]


def settled_s(alone_ns: Sequence[int], shared_ns: Sequence[int], played: DeviceRun) -> float:
    """Return when the last window of requests ended that was above the targets."""
    last = 0
    count = min(len(alone_ns), len(shared_ns))
    for begin in range(0, count - WINDOW + 1, WINDOW):
        alone, shared = alone_ns[begin : begin + WINDOW], shared_ns[begin : begin + WINDOW]
        is_over = statistics.median(shared) > TARGETS["online_p50_ratio"] * statistics.median(alone)
        if is_over or quantile(shared, 0.9) > TARGETS["online_p99_ratio"] * quantile(alone, 0.9):
            last = begin + WINDOW
    return played.wall_ns / SECOND_NS * last / max(count, 1)


# ---- live -----------------------------------------------------------------------------------------------------------


def _measure_live(training: Workload, rounds: int, report: ReportLine) -> tuple[list[LiveColdResult], dict[str, str]]:
    results, left_out = [], {}
    for service in cold_services(LIVE_RUN_NS):
        if service.cycle > 1 or service.processes > 1 or service.drop_at_ns:
            left_out[service.name] = "the player repeats one request in one process at one clock"
            continue
        report(f"live: {service.name}")
        try:
            results.append(_live(service, training, rounds))
        except CotenantError as error:
            left_out[service.name] = str(error)
    return results, left_out


def _live(service: ColdService, training: Workload, rounds: int) -> LiveColdResult:
    ratios = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="cotenant-cold-") as home, SharingHarness(Path(home)) as harness:
            harness.record(training)
            alone = harness.play("alone", service.load, None)
            cold = harness.play("cotenant mps", service.load, training)
            harness.record(service.load)
            profiled = harness.play("cotenant mps", service.load, training)
        ratios.append(
            (
                cold.latency_p50_ns / alone.latency_p50_ns,
                cold.latency_p99_ns / alone.latency_p99_ns,
                (cold.offline_done_ns / cold.wall_ns) / max(profiled.offline_done_ns / profiled.wall_ns, 1e-9),
            )
        )
    p50, p99, offline = (statistics.median(column) for column in zip(*ratios, strict=True))
    return LiveColdResult(name=service.name, online_p50_ratio=p50, online_p99_ratio=p99, offline_vs_profiled=offline)
