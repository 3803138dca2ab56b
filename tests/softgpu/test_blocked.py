"""A program that waits when its GPU fails: every kind of wait ends with a sticky error code and frees all memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.softgpu import manage
from cotenant.softgpu.fault import KINDS, inject
from tests.softgpu.test_crash import await_work, counters_after_deaths
from tests.support.software_gpus import start

pytestmark = pytest.mark.live

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")

WAIT_KINDS = ("stream", "event", "context", "function", "copy", "free", "graph", "value", "ring")


@pytest.mark.parametrize("fault", ["illegal-address", "device-lost", "destroyed"])
def test_every_wait_ends_with_a_fault(softgpu: Path, fault: str) -> None:
    programs = {kind: start(softgpu, "blocked.py", kind) for kind in WAIT_KINDS}
    for program in programs.values():
        await_work(program)
    if fault == "destroyed":
        manage.destroy(softgpu)
        code = "CUDA_ERROR_DEVICE_UNAVAILABLE"
    else:
        assert inject(softgpu, 0, KINDS[fault]) == len(WAIT_KINDS)
        code = KINDS[fault].code
    ends = {kind: program.communicate(timeout=60)[0].split() for kind, program in programs.items()}
    assert ends == {kind: [code, code, "0"] for kind in WAIT_KINDS}  # no host function ran for work that never ended
    if fault != "destroyed":
        counters = counters_after_deaths(softgpu)
        assert counters["memory_free_bytes"] == counters["memory_bytes"]
