"""Whatever a program waits for when its GPU goes: the wait ends, with the code that sticks, and nothing stays taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.softgpu import manage
from cotenant.softgpu.fault import KINDS, inject
from tests.softgpu.test_crash import at_work, settled
from tests.support.software_gpus import start

pytestmark = pytest.mark.live

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")

HOOK_MODES = ("stream", "event", "context", "function", "copy", "free", "graph", "value", "ring")


@pytest.mark.parametrize("fault", ["illegal-address", "device-lost", "destroyed"])
def test_no_wait_outlives_a_fault(softgpu: Path, fault: str) -> None:
    programs = {way: start(softgpu, "blocked.py", way) for way in HOOK_MODES}
    for program in programs.values():
        at_work(program)
    if fault == "destroyed":
        manage.destroy(softgpu)
        code = "CUDA_ERROR_DEVICE_UNAVAILABLE"
    else:
        assert inject(softgpu, 0, KINDS[fault]) == len(HOOK_MODES)
        code = KINDS[fault].code
    ends = {way: program.communicate(timeout=60)[0].split() for way, program in programs.items()}
    assert ends == {way: [code, code, "0"] for way in HOOK_MODES}  # no host function ran for work that never ended
    if fault != "destroyed":
        counters = settled(softgpu)
        assert counters["memory_free_bytes"] == counters["memory_bytes"]
