"""Batches of copies, tensor maps and other single calls on the soft GPU, by an unmodified cuda-bindings program."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.live.softgpu import manage
from tests.live.softgpus import run

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("preset", ["v100", "h100"])
def test_single_calls_do_what_they_say(tmp_path: Path, preset: str) -> None:
    directory = tmp_path / "gpu"
    manage.create(directory, preset, 1)
    try:
        assert "small calls" in run(directory, "smallcalls.py", "tensors" if preset == "h100" else "none")
        books = manage.inspect(directory, 0)
        assert books["memory_free_bytes"] == books["memory_bytes"]
        assert books["unsupported"] == ({} if preset == "h100" else {"cuTensorMapEncodeTiled": 1})
    finally:
        manage.destroy(directory)
