"""Arrays, textures and surfaces on the soft GPU, by an unmodified cuda-bindings program."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.live.softgpu import manage
from tests.live.softgpus import run

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = pytest.mark.timeout(180)


def test_arrays_hold_what_was_copied_in_and_give_back_what_they_took(softgpu: Path) -> None:
    assert "arrays right" in run(softgpu, "arrays.py")
    books = manage.inspect(softgpu, 0)
    assert books["memory_free_bytes"] == books["memory_bytes"]
    assert books["unsupported"] == {"cuArray3DCreate_v2": 2}
