"""Batches of copies, tensor maps and other single calls on the software GPU, by an unmodified cuda-bindings program."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.softgpu import manage
from tests.support.software_gpus import run

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]


@pytest.mark.parametrize("preset", ["v100", "h100"])
def test_single_calls_work(tmp_path: Path, preset: str) -> None:
    directory = tmp_path / "gpu"
    manage.create(directory, preset, 1)
    try:
        assert "small calls" in run(directory, "smallcalls.py", "tensors" if preset == "h100" else "none")
        counters = manage.inspect(directory, 0)
        assert counters["memory_free_bytes"] == counters["memory_bytes"]
        assert counters["unsupported"] == ({} if preset == "h100" else {"cuTensorMapEncodeTiled": 1})
    finally:
        manage.destroy(directory)
