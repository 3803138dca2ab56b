"""How fast is the software GPU? The model in simulated time, and a launch and a wait in real time."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from cotenant.domain.histogram import Histogram, Recorder
from cotenant.domain.instant import MICROSECOND_NS, SECOND_NS
from cotenant.live.clock import LiveClock, pause
from cotenant.live.process import run_to_end
from cotenant.live.softgpu import manage, probe
from cotenant.sim.device import OWN_GROUP, Device, Kernel, ScriptClient, Step, preset

KERNELS: Final = 200_000
WAITS: Final = 200
BURST: Final = 256
WAIT_NS: Final = 1_000_000
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


def bench_device(rounds: int, say: Callable[[str], None]) -> dict[str, object]:
    """Medians over interleaved rounds; the wait errors of all rounds are pooled."""
    rates: dict[str, list[float]] = {"sliced mixed": [], "sliced small": [], "together small": [], "together mixed": []}
    launches: list[int] = []
    late = Recorder()
    idle: list[float] = []
    home = Path(tempfile.mkdtemp(prefix="cotenant-bench-"))
    try:
        manage.create(home, "v100", 1)
        for number in range(1, rounds + 1):
            say(f"round {number} of {rounds}: {KERNELS} kernels in simulated time, {WAITS} waits in real time")
            rates["sliced mixed"].append(_kernels_per_s(_MIXED, OWN_GROUP))
            rates["sliced small"].append(_kernels_per_s(_SMALL, OWN_GROUP))
            rates["together small"].append(_kernels_per_s(_SMALL, 1))
            rates["together mixed"].append(_kernels_per_s(_MIXED, 1))
            seen = _probe(home)
            launches.append(int(statistics.median(seen["launch_ns"])))
            for late_ns in seen["late_ns"]:
                late.record(late_ns)
            idle.append(_idle_cpu_pct(home))
    finally:
        manage.destroy(home)
        shutil.rmtree(home, ignore_errors=True)
    waits = late.histogram()
    return {
        "bench": "device",
        "rounds": rounds,
        "sim_kernels_per_s": statistics.median(rates["sliced mixed"]),
        "sim_kernels_per_s_one_wave": statistics.median(rates["sliced small"]),
        "sim_kernels_per_s_one_group": statistics.median(rates["together mixed"]),
        "sim_kernels_per_s_one_group_one_wave": statistics.median(rates["together small"]),
        "launch_ns": statistics.median(launches),
        "wait_error_us_p50": _microseconds(waits, 0.5),
        "wait_error_us_p99": _microseconds(waits, 0.99),
        "idle_cpu_pct": statistics.median(idle),
    }


def _microseconds(histogram: Histogram, fraction: float) -> float:
    return histogram.quantile(fraction) / MICROSECOND_NS


def _kernels_per_s(kernels: tuple[Kernel, ...], group_label: int) -> float:
    """Two clients that launch every 4 us and wait every 8 launches, on a V100."""
    steps = tuple(Step(4_000, index % len(kernels), sync=index == 7) for index in range(8))
    client = ScriptClient(steps=steps, repeats=KERNELS // 16, group_label=group_label)
    device = Device(preset("v100"))
    clock = LiveClock()
    begin = clock.now()
    results = device.run(kernels, [client, client])
    seconds = (clock.now() - begin) / SECOND_NS
    return sum(result.completions for result in results) / seconds


def _probe(home: Path) -> dict[str, list[int]]:
    command = [sys.executable, "-m", "cotenant.live.softgpu.probe", str(WAITS), str(BURST), str(WAIT_NS)]
    seen: dict[str, Any] = msgspec.json.decode(run_to_end(command, probe.environment(home)))
    return seen


def _idle_cpu_pct(home: Path) -> float:
    """What the server uses while nobody asks for anything."""
    pid = manage.gpus(home)[0].pid
    clock = LiveClock()
    before, begin = _cpu_ns(pid), clock.now()
    pause(IDLE_S)
    return 100 * (_cpu_ns(pid) - before) / (clock.now() - begin)


def _cpu_ns(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * SECOND_NS // os.sysconf("SC_CLK_TCK")
