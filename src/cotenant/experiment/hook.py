"""What does the hook cost? A launch through it and past it, and a program with and without it."""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from cotenant.live.hook import door, probe
from cotenant.live.process import run_to_end
from cotenant.live.softgpu import manage

BURSTS: Final = 20
CALLS: Final = 20_000
BATCHES: Final = 101
BATCH: Final = 32
KERNEL_NS: Final = 10_000
LAUNCH_NS: Final = 5_000
"""What a launch and its kernel take at the least in practice: what the hook's own share is told against."""


def bench_hook(rounds: int, say: Callable[[str], None]) -> dict[str, object]:
    """Medians: of bursts that alternate in one process, and of processes that alternate on one software GPU."""
    rows: list[list[float]] = []
    untraced: list[list[float]] = []
    sampled: list[list[float]] = []
    spent: dict[str, list[float]] = {"off": [], "counting": [], "sampling": [], "measuring": []}
    home = Path(tempfile.mkdtemp(prefix="cotenant-bench-"))
    try:
        manage.create(home / "gpu", "v100", 1)
        for number in range(1, rounds + 1):
            say(f"round {number} of {rounds}: {BURSTS} bursts of {CALLS} launches, then {len(spent)} programs")
            rows += _compare(home / f"idle{number}", sample=0)
            untraced += _compare(home / f"untraced{number}", sample=0, trace=False)
            sampled += _compare(home / f"sampled{number}", sample=64)
            for way, times in spent.items():
                times.append(_spend(home / f"{way}{number}", home / "gpu", way))
    finally:
        manage.destroy(home / "gpu")
        shutil.rmtree(home, ignore_errors=True)
    plain_ns = statistics.median(row[0] for row in rows)
    instructions = [row for row in rows if row[4] >= 0 and row[5] >= 0]
    return {
        "bench": "hook",
        "rounds": rounds,
        "plain_ns": plain_ns,
        "added_ns": statistics.median(row[1] - row[0] for row in sampled),
        "added_ns_unsampled": statistics.median(row[1] - row[0] for row in rows),
        "trace_added_ns": statistics.median(row[1] - row[0] for row in rows)
        - statistics.median(row[1] - row[0] for row in untraced),
        "plain_ns_alloc": statistics.median(row[2] for row in rows),
        "added_ns_alloc": statistics.median(row[3] - row[2] for row in rows),
        "added_instructions": statistics.median(row[5] - row[4] for row in instructions) if instructions else None,
        "sampling_own_pct": 100 * statistics.median(row[1] for row in sampled) / LAUNCH_NS
        - 100 * statistics.median(row[1] for row in rows) / LAUNCH_NS,
        "launch_ns_soft": statistics.median(spent["off"]) / (BATCH * (BATCHES - 1)),
        "counting_overhead_pct": _overhead_pct(spent, "counting"),
        "sampling_overhead_pct": _overhead_pct(spent, "sampling"),
        "measuring_overhead_pct": _overhead_pct(spent, "measuring"),
    }


def _overhead_pct(spent: Mapping[str, list[float]], way: str) -> float:
    """The median of the ratios within a round: the machine's mood changes between rounds."""
    pairs = zip(spent[way], spent["off"], strict=True)
    return 100 * statistics.median(with_hook / without - 1 for with_hook, without in pairs)


def _compare(home: Path, *, sample: int, trace: bool = True) -> list[list[float]]:
    home.mkdir()
    environ = probe.environment(home, door.idle_driver(), {}, measure=False, sample=sample, trace=trace)
    rows: list[list[float]] = msgspec.json.decode(run_to_end(_command("compare", BURSTS, CALLS), environ))
    return rows


def _spend(home: Path, gpu: Path, way: str) -> float:
    home.mkdir()
    base = {**manage.env(gpu, base={}), "CUDA_VISIBLE_DEVICES": "0"}
    sample = 64 if way == "sampling" else 0
    environ = probe.environment(home, manage.library(), base, measure=way == "measuring", sample=sample)
    if way == "off":
        environ = {**environ, **base}
    taken: Any = msgspec.json.decode(run_to_end(_command("spend", BATCHES, BATCH, KERNEL_NS), environ))
    return float(taken)


def _command(*words: object) -> list[str]:
    return [sys.executable, "-m", "cotenant.live.hook.probe", *map(str, words)]
