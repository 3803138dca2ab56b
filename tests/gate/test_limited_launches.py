"""Launches that are limited to a part of the SMs keep their order and their results, and end with their context."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cotenant.gate.rules import GatePolicy, GateRules
from cotenant.softgpu import manage
from tests.support.gate_files import OFFLINE, ONLINE, Gate
from tests.support.hook_runs import hook_before
from tests.support.mps_daemons import MpsHarness
from tests.support.node_processes import until
from tests.support.software_gpus import PROGRAMS

pytestmark = pytest.mark.live

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
PROGRAM = [sys.executable, str(PROGRAMS / "limited_launches.py")]
SM_COUNT = 80
TOP, SPACE = 0, 19
"""The reasons of the gate for a launch that need not ask, and for one that occupies a part of the SMs only;
native/gate/gate.h."""


@pytest.mark.parametrize(
    "policy, part_ppm, reason",
    [(GatePolicy.FILL, 300_000, SPACE), (GatePolicy.FILL, 650_000, SPACE), (GatePolicy.OPEN, 450_000, TOP)],
)
def test_limited_launches_keep_their_order_and_results(
    tmp_path: Path, policy: GatePolicy, part_ppm: int, reason: int
) -> None:
    gpu = MpsHarness(tmp_path)
    gate = Gate()
    started: list[subprocess.Popen[str]] = []
    try:
        assert gpu.control("-d").returncode == 0
        gate.set_entries(rules=GateRules(policy=policy, sm_ppm=part_ppm))
        environments = []
        for slot in (ONLINE, OFFLINE):
            hooked = hook_before(gpu.directory, tmp_path / f"hook{slot}").environ("shim")
            mps = {name: value for name, value in gpu.environment().items() if name.startswith("CUDA_MPS")}
            environments.append(gate.environ({**hooked, **mps}, slot))
        holder = subprocess.Popen(
            [*PROGRAM, "hold"], env=environments[ONLINE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holding\n"
        until(lambda: gate.word(ONLINE, "sequence") > 100)
        program = subprocess.Popen(
            PROGRAM, env=environments[OFFLINE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(program)
        assert program.stdout is not None
        assert program.stdout.readline() == "computed\n"
        clients = manage.inspect(gpu.directory, 0)["clients"]
        (counters,) = [client["counters"] for client in clients if client["pid"] == program.pid]
        assert reason == TOP or gate.passed(OFFLINE, reason) > 0
        width = counters["sm_ns"] / counters["busy_ns"] / SM_COUNT
        assert width < part_ppm / 1e6 + 0.1  # unlimited, it occupies every SM
        assert program.communicate("\n")[0] == "released\n"
        assert program.returncode == 0
    finally:
        for process in started:
            process.kill()
            process.communicate()
        gpu.close()
        gate.close()
