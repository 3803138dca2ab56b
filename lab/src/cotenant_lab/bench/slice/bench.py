"""Bench `slice`: what launching a kernel in parts costs the program, and how long parts delay an online tenant."""

from __future__ import annotations

import os
import shutil
import statistics
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from cotenant.errors import WorldError
from cotenant.gate.rules import GateRules
from cotenant.hook import parts, shim
from cotenant.hook.kernel_times import FILE_NAME, MAGIC, key_of
from cotenant.runner.clock import monotonic_ns
from cotenant.runner.process import run_and_capture, start_with_pipes
from cotenant.simulate.kernels import RunSettings, Tenant, play, play_alone
from cotenant.softgpu import manage
from cotenant.softgpu.costs import HARDWARE, hardware
from cotenant.workload.kernel import KernelIdentity
from cotenant.workload.load import TRAINING, Launch, Workload, poisson
from cotenant_lab.bench.gate import OFFLINE, ONLINE, GateSetup
from cotenant_lab.bench.slice import program

LAUNCHES: Final = 200
CUT_LAUNCHES: Final = 300
PROFILE_NS: Final = 5_000_000
"""The kernel's time in the profile of the program whose driver does nothing: fifty parts of 100 us."""
BOUNDS_US: Final = (50, 100, 250)
REQUESTS: Final = 2000
WARM: Final = 100
RATE_PER_S: Final = 300.0
ONLINE_NS: Final = 100_000
OFFLINE_NS: Final = 5_000_000
WAVES: Final = 500
"""Waves of blocks of the offline kernel: 10 us each."""
INSTRUCTIONS: Final = 300
KERNELS: Final = 40
VARIANT_MOST: Final = 1.05
REWRITE_MS_MOST: Final = 1.0
DELAY_MARGIN_US: Final = 75.0
"""A part is submitted 60 us before the one on the device ends, and may end up to one wave late."""


def bench_slice(rounds: int, report: Callable[[str], None]) -> dict[str, object]:
    """Return medians of interleaved runs on one software V100, and the longest delays of simulated runs."""
    home = Path(tempfile.mkdtemp(prefix="cotenant-bench-"))
    rows: list[tuple[int, int]] = []
    added_us: list[float] = []
    rewrite_ms: list[float] = []
    try:
        manage.create(home / "gpu", "v100", 1, costs=HARDWARE)
        try:
            for number in range(1, rounds + 1):
                report(f"round {number} of {rounds}: {LAUNCHES} launches of a kernel and its variant")
                rows += compare(home / "gpu")
                added_us.append(part_cost_us(home / f"hook{number}"))
                rewrite_ms.append(rewrite_cost_ms())
        finally:
            manage.destroy(home / "gpu")
    finally:
        shutil.rmtree(home, ignore_errors=True)
    delays_us = {}
    for bound_us in BOUNDS_US:
        report(f"{REQUESTS} simulated requests next to a training, with a bound of {bound_us} us")
        delays_us[str(bound_us)] = longest_delay_us(bound_us)
    variant = statistics.median(row[1] for row in rows) / statistics.median(row[0] for row in rows)
    met = {
        "variant_vs_plain": variant <= VARIANT_MOST,
        "rewrite_ms_per_kernel": statistics.median(rewrite_ms) <= REWRITE_MS_MOST,
        "online_delay_us_max": all(delays_us[str(us)] <= us + DELAY_MARGIN_US for us in BOUNDS_US),
    }
    return {
        "bench": "slice",
        "costs": "hardware",
        "rounds": rounds,
        "slice_launch_us": statistics.median(added_us),
        "variant_vs_plain": variant,
        "rewrite_ms_per_kernel": statistics.median(rewrite_ms),
        "online_delay_us_max": delays_us,
        "met": met,
    }


# ---- live ----


def _command(*words: object) -> list[str]:
    return [sys.executable, "-m", "cotenant_lab.bench.slice.program", *map(str, words)]


def compare(gpu: Path) -> list[tuple[int, int]]:
    output = run_and_capture(_command("compare", LAUNCHES), {**os.environ, **manage.env(gpu)})
    rows: list[tuple[int, int]] = msgspec.json.decode(output)
    return rows[LAUNCHES // 10 :]


def part_cost_us(home: Path) -> float:
    """Return by how much a part makes a launch longer, in front of a driver that does nothing."""
    setup = GateSetup(home, shim.null_driver(), {})
    holder = None
    try:
        environ = {**setup.environ(OFFLINE), "COTENANT_CACHE": str(home), "COTENANT_SAMPLE": "0"}
        kernel = KernelIdentity(program.KERNEL, (program.TRAIN_BLOCKS, 1, 1), (program.THREADS, 1, 1))
        entry = struct.pack("<4Q", key_of("", kernel), PROFILE_NS, PROFILE_NS, PROFILE_NS)
        (Path(environ[shim.RECORD_VARIABLE]) / FILE_NAME).write_bytes(MAGIC + entry)
        whole: list[int] = msgspec.json.decode(run_and_capture(_command("train", CUT_LAUNCHES), environ))
        holder = start_with_pipes(_command("hold"), setup.environ(ONLINE), keep_input=True)
        if holder.stdout is None or holder.stdout.readline() != "holding\n":
            raise WorldError("the online program of bench slice did not start")
        cut: list[int] = msgspec.json.decode(run_and_capture(_command("train", CUT_LAUNCHES), environ))
        page: dict[str, Any] = setup.page(OFFLINE)
    finally:
        if holder is not None:
            holder.kill()
            holder.communicate()
        setup.close()
    if not page["cut_launches"]:
        raise WorldError("no launch was cut into parts: nothing was measured")
    per_launch = float(page["parts"]) / float(page["cut_launches"])
    return (statistics.median(cut) - statistics.median(whole)) / per_launch / 1e3


def rewrite_cost_ms() -> float:
    """Return how long a kernel of some hundred instructions takes to rewrite, in a module of many."""
    body = "".join(
        f"  mad.lo.s32 %r{number % 9 + 1}, %ctaid.x, %ntid.x, %r{number % 7 + 1};\n" for number in range(INSTRUCTIONS)
    )
    kernels = "".join(
        f".visible .entry k{number}(.param .u64 a)\n{{\n  .reg .b32 %r<11>;\n{body}  ret;\n}}\n"
        for number in range(KERNELS)
    )
    text = f".version 7.8\n.target sm_70\n.address_size 64\n{kernels}".encode()
    began_ns = monotonic_ns()
    rewritten, _ = parts.rewrite(text)
    took_ns = monotonic_ns() - began_ns
    if rewritten is None:
        raise WorldError("the module of the bench has no variants")
    return took_ns / KERNELS / 1e6


# ---- simulated ----


def longest_delay_us(bound_us: int) -> float:
    """Return the longest delay of a kernel that leaves the device idle most of the time, next to long kernels."""
    device = msgspec.structs.replace(hardware("v100"), priority_effect_ppm=0)
    setting = RunSettings(device=device, rules=GateRules(bound_ns=bound_us * 1000), warm=WARM, seed=7)
    online = Workload(
        "service",
        (Launch(KernelIdentity("online", (80, 1, 1), (256, 1, 1)), ONLINE_NS),),
        poisson(RATE_PER_S, 11),
        REQUESTS,
    )
    grid = (WAVES * device.sm_count, 1, 1)
    offline = Workload(
        "training",
        (Launch(KernelIdentity("offline", grid, (1024, 1, 1), 65536), OFFLINE_NS, has_ptx=True),),
        TRAINING,
    )
    alone = play_alone(online, setting).clients[0].latencies_ns
    shared = play("fill", [Tenant(load=online, priority=2), Tenant(load=offline, priority=7)], setting)
    latencies_ns = shared.played.clients[0].latencies_ns
    return max(after - before for after, before in zip(latencies_ns, alone, strict=True)) / 1e3
