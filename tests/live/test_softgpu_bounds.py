"""No client can keep the others from the device: not by long work, not by much of it, not by taking every place."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.live.softgpu import manage
from tests.live.softgpus import run, start
from tests.live.test_softgpu_crash import at_work, settled

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = pytest.mark.timeout(180)

HOUR_S = 3600


def test_hour_long_kernels_side_by_side_hold_nobody_up(softgpu: Path) -> None:
    waiters = [start(softgpu, "longwait.py", "blocking", str(HOUR_S)) for _ in range(2)]
    try:
        for waiter in waiters:
            at_work(waiter)
        assert len(manage.inspect(softgpu, 0)["clients"]) == 2
        assert "computed" in run(softgpu, "compute.py")
        assert [waiter.poll() for waiter in waiters] == [None, None]
    finally:
        for waiter in waiters:
            waiter.kill()
            waiter.communicate()
    assert settled(softgpu)["memory_free_bytes"] == manage.inspect(softgpu, 0)["memory_bytes"]


def test_a_kernel_of_more_than_an_hour_is_refused(softgpu: Path) -> None:
    waiter = start(softgpu, "longwait.py", "blocking", str(HOUR_S + 1))
    _, err = waiter.communicate(timeout=60)
    assert waiter.returncode != 0
    assert "CUDA_ERROR_INVALID_VALUE" in err
