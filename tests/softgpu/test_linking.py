"""Linking by the driver on the software GPU, by an unmodified cuda-bindings program."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.softgpu import manage
from tests.support.software_gpus import run

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]


def test_linked_images_become_one_module(softgpu: Path) -> None:
    assert "linked" in run(softgpu, "linking.py")
    counters = manage.inspect(softgpu, 0)
    assert counters["memory_free_bytes"] == counters["memory_bytes"]
    assert counters["unsupported"] == {"cuLinkAddData_v2": 1}
