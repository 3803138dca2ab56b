"""Parts of the soft GPU's face that meet in one program: captures, pools, mappings, arrays, values, green contexts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cotenant.live.softgpu import manage
from tests.live.mps import Stage
from tests.live.softgpus import PROGRAMS, run

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = pytest.mark.timeout(180)


def test_the_parts_of_the_face_go_together(softgpu: Path) -> None:
    assert "mixed" in run(softgpu, "mixtures.py")
    books = manage.inspect(softgpu, 0)
    assert books["memory_free_bytes"] == books["memory_bytes"]
    assert books["unsupported"] == {}


@pytest.mark.parametrize("seed", range(3))
def test_every_kind_of_memory_comes_back_from_a_full_device(softgpu: Path, seed: int) -> None:
    assert "given back" in run(softgpu, "hoard.py", str(seed))
    books = manage.inspect(softgpu, 0)
    assert books["memory_free_bytes"] == books["memory_bytes"]


def test_green_contexts_divide_what_an_mps_client_has(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    try:
        assert stage.control("-d").returncode == 0
        done = subprocess.run(
            [sys.executable, str(PROGRAMS / "green.py"), "2", "2"],
            env=stage.environment(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="50"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout.strip() == "green", done.stdout
    finally:
        stage.close()


def test_nodes_record_and_await_events_of_another_process(softgpu: Path) -> None:
    assert "seen" in run(softgpu, "sharedgraph.py")
    books = manage.inspect(softgpu, 0)
    assert books["memory_free_bytes"] == books["memory_bytes"]
