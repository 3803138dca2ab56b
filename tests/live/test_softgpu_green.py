"""Green contexts on the soft GPU, by an unmodified cuda-bindings program: the grain is the architecture's."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.live.softgpu import manage
from tests.live.softgpus import run

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("preset, least, step", [("v100", 2, 2), ("a100-40", 4, 2), ("h100", 8, 8)])
def test_green_contexts_are_parts_of_a_device(tmp_path: Path, preset: str, least: int, step: int) -> None:
    directory = tmp_path / "gpu"
    manage.create(directory, preset, 1)
    try:
        assert "green" in run(directory, "green.py", str(least), str(step))
        books = manage.inspect(directory, 0)
        assert books["memory_free_bytes"] == books["memory_bytes"]
        assert books["unsupported"] == {}
    finally:
        manage.destroy(directory)
