"""The software GPU executes PTX: the results of kernels, random programs against a reference, and faults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cotenant.softgpu import manage
from tests.support.effort import EXAMPLES
from tests.support.software_gpus import run, start

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = [pytest.mark.ptx, pytest.mark.live, pytest.mark.timeout(600)]


def test_kernels_compute_their_results(softgpu: Path) -> None:
    out = run(softgpu, "ptx_rules.py").splitlines()
    assert out == ["t0 0.00", "t1 0.50", "computed"]
    assert manage.inspect(softgpu, 0)["code"] == {"executable_kernels": 14, "refused_kernels": 1}


def test_instructions_of_compilers_compute_their_results(softgpu: Path) -> None:
    assert run(softgpu, "ptx_instructions.py") == "computed\n"
    assert manage.inspect(softgpu, 0)["code"]["refused_kernels"] == 0


def test_forms_for_newer_devices_compute_their_results(softgpu: Path) -> None:
    assert run(softgpu, "ptx_forms.py") == "computed\n"
    assert manage.inspect(softgpu, 0)["code"]["refused_kernels"] == 0


@pytest.mark.parametrize("program", ["ptx_clusters.py", "ptx_groups.py"])
def test_clusters_of_blocks_and_groups_of_warps(tmp_path: Path, program: str) -> None:
    directory = tmp_path / "hopper"
    manage.create(directory, "h100", 1)
    try:
        assert run(directory, program) == "computed\n"
        assert manage.inspect(directory, 0)["code"]["refused_kernels"] == 0
    finally:
        manage.destroy(directory)


def test_clusters_are_refused_by_devices_without_them(softgpu: Path) -> None:
    assert run(softgpu, "ptx_clusters.py", "refused") == "CUDA_ERROR_NOT_SUPPORTED\n"


def test_random_programs_equal_the_reference(softgpu: Path) -> None:
    process = start(softgpu, "ptx_random.py", str(EXAMPLES))
    out, err = process.communicate(timeout=7000)  # the timeout of the test ends it earlier
    assert (process.returncode, out) == (0, "equal\n"), err
    assert manage.inspect(softgpu, 0)["code"]["refused_kernels"] == 0


FAULTS = {
    "endless": "CUDA_ERROR_LAUNCH_TIMEOUT",
    "illegal": "CUDA_ERROR_ILLEGAL_ADDRESS",
    "misaligned": "CUDA_ERROR_MISALIGNED_ADDRESS",
    "trap": "CUDA_ERROR_LAUNCH_FAILED",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_kernel_ends_its_context(softgpu: Path, fault: str) -> None:
    assert run(softgpu, "ptx_faults.py", fault).strip() == FAULTS[fault]
    assert run(softgpu, "ptx_faults.py", "illegal").strip() == FAULTS["illegal"]  # the device still serves others


def test_kernels_in_parts_of_every_size_equal_whole_launches(softgpu: Path) -> None:
    found = re.fullmatch(r"(\d+) kernels, (\d+) runs in parts, 3 refused\n", run(softgpu, "ptx_parts.py"))
    assert found is not None
    assert int(found[1]) >= 80
    assert int(found[2]) > 1000
