"""Linking by the driver on the soft GPU, by an unmodified cuda-bindings program."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.live.softgpu import manage
from tests.live.softgpus import run

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = pytest.mark.timeout(180)


def test_images_become_one(softgpu: Path) -> None:
    assert "linked" in run(softgpu, "linking.py")
    books = manage.inspect(softgpu, 0)
    assert books["memory_free_bytes"] == books["memory_bytes"]
    assert books["unsupported"] == {"cuLinkAddData_v2": 1}
