"""Bench `device`: speed of the device model in simulated time, and cost of launches, waits and queries in real time."""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from cotenant.runner.clock import LiveClock, pause
from cotenant.runner.process import run_and_capture, start_with_pipes
from cotenant.softgpu import manage, probe
from cotenant.softgpu.sim.device import OWN_GROUP, Device, Kernel, ScriptClient, Step, preset
from cotenant.units.histogram import Histogram, Recorder
from cotenant.units.instant import MICROSECOND_NS, SECOND_NS

KERNELS: Final = 200_000
WAITS: Final = 200
BURST: Final = 256
WAIT_NS: Final = 1_000_000
CONFIRMED_NS: Final = 20_000
IDLE_S: Final = 3.0
_MIXED: Final = (
    Kernel(blocks=640, block_ns=10_000),
    Kernel(blocks=2000, block_ns=5_000, bytes_per_block=100_000),
    Kernel(blocks=40, block_ns=20_000, threads_per_block=128),
    Kernel(blocks=10_000, block_ns=4_000, threads_per_block=512),
)
_SMALL: Final = (
    Kernel(blocks=64, block_ns=10_000),
    Kernel(blocks=200, block_ns=5_000, bytes_per_block=10_000),
    Kernel(blocks=40, block_ns=20_000, threads_per_block=128),
    Kernel(blocks=100, block_ns=4_000, threads_per_block=512),
)


def bench_device(rounds: int, report: Callable[[str], None]) -> dict[str, object]:
    """Return medians over interleaved rounds; wait errors of all rounds are pooled as absolute values."""
    rates: dict[str, list[float]] = {"sliced mixed": [], "sliced small": [], "together small": [], "together mixed": []}
    costs: dict[str, list[float]] = {"launch_ns": [], "query_ns": [], "confirmed_ns": []}
    errors = Recorder()
    early = 0
    idle: list[float] = []
    home = Path(tempfile.mkdtemp(prefix="cotenant-bench-"))
    try:
        manage.create(home, "v100", 1)
        for number in range(1, rounds + 1):
            report(f"round {number} of {rounds}: {KERNELS} kernels in simulated time, {WAITS} waits in real time")
            rates["sliced mixed"].append(_kernels_per_s(_MIXED, OWN_GROUP))
            rates["sliced small"].append(_kernels_per_s(_SMALL, OWN_GROUP))
            rates["together small"].append(_kernels_per_s(_SMALL, 1))
            rates["together mixed"].append(_kernels_per_s(_MIXED, 1))
            samples = {**_probe(home, WAITS, BURST, WAIT_NS), **_probe(home, "events", WAITS, CONFIRMED_NS)}
            for name, medians in costs.items():
                medians.append(statistics.median(samples[name]))
            for late_ns in samples["late_ns"]:
                errors.record(abs(late_ns))
                early += late_ns < 0
            idle.append(_idle_cpu_pct(home))
    finally:
        manage.destroy(home)
        shutil.rmtree(home, ignore_errors=True)
    waits = errors.histogram()
    return {
        "bench": "device",
        "costs": "ideal",
        "rounds": rounds,
        "sim_kernels_per_s": statistics.median(rates["sliced mixed"]),
        "sim_kernels_per_s_one_wave": statistics.median(rates["sliced small"]),
        "sim_kernels_per_s_one_group": statistics.median(rates["together mixed"]),
        "sim_kernels_per_s_one_group_one_wave": statistics.median(rates["together small"]),
        "launch_ns": statistics.median(costs["launch_ns"]),
        "query_ns": statistics.median(costs["query_ns"]),
        "confirmed_launch_ns": statistics.median(costs["confirmed_ns"]),
        "wait_error_us_p50": _microseconds(waits, 0.5),
        "wait_error_us_p99": _microseconds(waits, 0.99),
        "early_waits": early,
        "idle_cpu_pct": statistics.median(idle),
    }


def _microseconds(histogram: Histogram, fraction: float) -> float:
    return histogram.quantile(fraction) / MICROSECOND_NS


def _kernels_per_s(kernels: tuple[Kernel, ...], group_label: int) -> float:
    """Run two clients that launch every 4 us and wait every 8 launches, on a V100."""
    steps = tuple(Step(4_000, index % len(kernels), sync=index == 7) for index in range(8))
    client = ScriptClient(steps=steps, repeats=KERNELS // 16, group_label=group_label)
    device = Device(preset("v100"))
    clock = LiveClock()
    begin = clock.now()
    results = device.run(kernels, [client, client])
    seconds = (clock.now() - begin) / SECOND_NS
    return sum(result.completions for result in results) / seconds


def _probe(home: Path, *words: object) -> dict[str, list[int]]:
    output = run_and_capture(_command(*words), probe.environment(home))
    samples: dict[str, Any] = msgspec.json.decode(output)
    return samples


def _command(*words: object) -> list[str]:
    return [sys.executable, "-m", "cotenant.softgpu.probe", *map(str, words)]


def _idle_cpu_pct(home: Path) -> float:
    """Return the CPU use of the server and a connected client that is idle."""
    client = start_with_pipes(_command(1, 1, 1000, "stay"), probe.environment(home), keep_input=True)
    try:
        assert client.stdout is not None
        client.stdout.readline()  # it has launched and waited once and is idle from here on
        pids = (manage.gpus(home)[0].pid, client.pid)
        clock = LiveClock()
        begin_cpu_ns, begin = sum(map(cpu_ns, pids)), clock.now()
        pause(IDLE_S)
        return 100 * (sum(map(cpu_ns, pids)) - begin_cpu_ns) / (clock.now() - begin)
    finally:
        client.kill()
        client.communicate()


def cpu_ns(pid: int) -> int:
    """Return the CPU time of all threads in nanoseconds."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks)
