"""Bench `hook`: cost of a launch with and without the hook, and of a program with and without it."""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from cotenant.hook import probe, shim
from cotenant.runner.process import run_and_capture
from cotenant.softgpu import manage

BURSTS: Final = 20
CALLS: Final = 20_000
BATCHES: Final = 101
BATCH: Final = 32
KERNEL_NS: Final = 10_000
LAUNCH_NS: Final = 5_000
"""Minimum duration of a launch with its kernel in practice, for expressing the hook's cost as a fraction."""


def bench_hook(rounds: int, report: Callable[[str], None]) -> dict[str, object]:
    """Return medians of alternating bursts in one process and of alternating processes on one software GPU."""
    rows: list[list[float]] = []
    untraced: list[list[float]] = []
    sampled: list[list[float]] = []
    program_ns: dict[str, list[float]] = {"off": [], "counting": [], "sampling": [], "measuring": []}
    home = Path(tempfile.mkdtemp(prefix="cotenant-bench-"))
    try:
        manage.create(home / "gpu", "v100", 1)
        for number in range(1, rounds + 1):
            report(f"round {number} of {rounds}: {BURSTS} bursts of {CALLS} launches, then {len(program_ns)} programs")
            rows += _compare(home / f"idle{number}", sample=0)
            untraced += _compare(home / f"untraced{number}", sample=0, trace=False)
            sampled += _compare(home / f"sampled{number}", sample=64)
            for mode, times in program_ns.items():
                times.append(_program_ns(home / f"{mode}{number}", home / "gpu", mode))
    finally:
        manage.destroy(home / "gpu")
        shutil.rmtree(home, ignore_errors=True)
    plain_ns = statistics.median(row[0] for row in rows)
    instructions = [row for row in rows if row[4] >= 0 and row[5] >= 0]
    return {
        "bench": "hook",
        "costs": "ideal",
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
        "launch_ns_soft": statistics.median(program_ns["off"]) / (BATCH * (BATCHES - 1)),
        "counting_overhead_pct": _overhead_pct(program_ns, "counting"),
        "sampling_overhead_pct": _overhead_pct(program_ns, "sampling"),
        "measuring_overhead_pct": _overhead_pct(program_ns, "measuring"),
    }


def _overhead_pct(program_ns: Mapping[str, list[float]], mode: str) -> float:
    """Return the median of the ratios within a round, because the machine's speed varies between rounds."""
    pairs = zip(program_ns[mode], program_ns["off"], strict=True)
    return 100 * statistics.median(with_hook / without - 1 for with_hook, without in pairs)


def _compare(home: Path, *, sample: int, trace: bool = True) -> list[list[float]]:
    home.mkdir()
    environ = probe.environment(home, shim.null_driver(), {}, measure=False, sample=sample, trace=trace)
    rows: list[list[float]] = msgspec.json.decode(run_and_capture(_command("compare", BURSTS, CALLS), environ))
    return rows


def _program_ns(home: Path, gpu: Path, mode: str) -> float:
    home.mkdir()
    base = {**manage.env(gpu, base={}), "CUDA_VISIBLE_DEVICES": "0"}
    sample = 64 if mode == "sampling" else 0
    environ = probe.environment(home, manage.library(), base, measure=mode == "measuring", sample=sample)
    if mode == "off":
        environ = {**environ, **base}
    duration_ns: Any = msgspec.json.decode(run_and_capture(_command("spend", BATCHES, BATCH, KERNEL_NS), environ))
    return float(duration_ns)


def _command(*words: object) -> list[str]:
    return [sys.executable, "-m", "cotenant.hook.probe", *map(str, words)]
