"""Parts of the software GPU used together in one program: captures, pools, mappings, arrays, values, green contexts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cotenant.softgpu import manage
from tests.support.mps_daemons import MpsHarness
from tests.support.software_gpus import PROGRAMS, run

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]


def test_features_work_together_in_one_program(softgpu: Path) -> None:
    assert "mixed" in run(softgpu, "mixtures.py")
    counters = manage.inspect(softgpu, 0)
    assert counters["memory_free_bytes"] == counters["memory_bytes"]
    assert counters["unsupported"] == {}


@pytest.mark.parametrize("seed", range(3))
def test_every_kind_of_memory_is_released_on_a_full_device(softgpu: Path, seed: int) -> None:
    assert "given back" in run(softgpu, "hoard.py", str(seed))
    counters = manage.inspect(softgpu, 0)
    assert counters["memory_free_bytes"] == counters["memory_bytes"]


def test_green_contexts_partition_the_share_of_an_mps_client(tmp_path: Path) -> None:
    harness = MpsHarness(tmp_path)
    try:
        assert harness.control("-d").returncode == 0
        done = subprocess.run(
            [sys.executable, str(PROGRAMS / "green.py"), "2", "2"],
            env=harness.environment(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="50"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout.strip() == "green", done.stdout
    finally:
        harness.close()


def test_graph_nodes_use_events_of_another_process(softgpu: Path) -> None:
    assert "seen" in run(softgpu, "sharedgraph.py")
    counters = manage.inspect(softgpu, 0)
    assert counters["memory_free_bytes"] == counters["memory_bytes"]
