"""Whatever a program waits for when its GPU goes: the wait ends, with the code that sticks, and nothing stays taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.live.softgpu import manage
from cotenant.live.softgpu.fault import KINDS, inject
from tests.live.softgpus import start
from tests.live.test_softgpu_crash import at_work, settled

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")

WAYS = ("stream", "event", "context", "function", "copy", "free", "graph", "value", "ring")


@pytest.mark.parametrize("fault", ["illegal-address", "device-lost", "destroyed"])
def test_no_wait_outlives_a_fault(softgpu: Path, fault: str) -> None:
    programs = {way: start(softgpu, "blocked.py", way) for way in WAYS}
    for program in programs.values():
        at_work(program)
    if fault == "destroyed":
        manage.destroy(softgpu)
        code = "CUDA_ERROR_DEVICE_UNAVAILABLE"
    else:
        assert inject(softgpu, 0, KINDS[fault]) == len(WAYS)
        code = KINDS[fault].code
    ends = {way: program.communicate(timeout=60)[0].split() for way, program in programs.items()}
    assert ends == {way: [code, code, "0"] for way in WAYS}  # no host function ran for work that never ended
    if fault != "destroyed":
        books = settled(softgpu)
        assert books["memory_free_bytes"] == books["memory_bytes"]
