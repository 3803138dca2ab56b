"""Green contexts on the software GPU, by an unmodified cuda-bindings program, at the architecture's granularity."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.softgpu import manage
from tests.support.software_gpus import run

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]


@pytest.mark.parametrize("preset, least, step", [("v100", 2, 2), ("a100-40", 4, 2), ("h100", 8, 8)])
def test_green_contexts_partition_the_sms(tmp_path: Path, preset: str, least: int, step: int) -> None:
    directory = tmp_path / "gpu"
    manage.create(directory, preset, 1)
    try:
        assert "green" in run(directory, "green.py", str(least), str(step))
        counters = manage.inspect(directory, 0)
        assert counters["memory_free_bytes"] == counters["memory_bytes"]
        assert counters["unsupported"] == {}
    finally:
        manage.destroy(directory)
