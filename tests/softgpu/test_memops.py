"""Waits for values in memory, and writes of them, keep the order of streams, by an unmodified cuda-bindings program."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.softgpu import manage
from tests.support.software_gpus import run

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]


def test_work_after_a_value_wait_does_not_run_early(softgpu: Path) -> None:
    assert "values in order" in run(softgpu, "memops.py")
    counters = manage.inspect(softgpu, 0)
    assert counters["memory_free_bytes"] == counters["memory_bytes"]
    assert counters["unsupported"] == {"cuStreamWaitValue32_v2": 1}
