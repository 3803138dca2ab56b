"""Waits for values in memory, and writes of them, keep the order of streams, by an unmodified cuda-bindings program."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.live.softgpu import manage
from tests.live.softgpus import run

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = pytest.mark.timeout(180)


def test_nothing_behind_a_wait_is_early(softgpu: Path) -> None:
    assert "values in order" in run(softgpu, "memops.py")
    books = manage.inspect(softgpu, 0)
    assert books["memory_free_bytes"] == books["memory_bytes"]
    assert books["unsupported"] == {"cuStreamWaitValue32_v2": 1}
