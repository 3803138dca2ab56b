"""Kernels that spin until kernels of other devices run, as those of collectives do, from unmodified programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.softgpu import manage
from tests.support.software_gpus import run, start

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]
LONG_NS = str(60 * 10**9)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Path]:
    """Create two software V100s."""
    directory = tmp_path / "gpus"
    manage.create(directory, "v100", 2)
    yield directory
    manage.destroy(directory)


@pytest.fixture
def counter(tmp_path: Path) -> Path:
    path = tmp_path / "counter"
    path.write_bytes(bytes(4096))
    return path


def test_a_kernel_spins_until_that_of_the_other_device_runs(two: Path, counter: Path) -> None:
    shown = json.loads(run(two, "spin.py", str(counter), "0", "1", "2", LONG_NS))
    assert shown["shown"][0] == [0, "CUDA_ERROR_NOT_READY"]
    assert shown["shown"][2:] == ["CUDA_SUCCESS", "CUDA_SUCCESS"]
    assert shown["counter"] == 2


def test_kernels_of_two_processes_meet(two: Path, counter: Path) -> None:
    ranks = [start(two, "spin.py", str(counter), rank, rank, "2", LONG_NS) for rank in "01"]
    outputs = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert [json.loads(out)["shown"][-1] for out, _ in outputs] == ["CUDA_SUCCESS", "CUDA_SUCCESS"]
    assert int.from_bytes(counter.read_bytes()[:4], "little") == 2


def test_a_kernel_without_its_peer_ends_as_a_launch_timeout(two: Path, counter: Path) -> None:
    shown = json.loads(run(two, "spin.py", str(counter), "0", "0", "2", "50000000"))
    assert shown["shown"][-1] == "CUDA_ERROR_LAUNCH_TIMEOUT"
    assert shown["counter"] == 1
