"""Parts of the soft GPU's face that meet in one program: captures, pools, mappings, arrays, values, green contexts."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.live.softgpu import manage
from tests.live.softgpus import run

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = pytest.mark.timeout(180)


def test_the_parts_of_the_face_go_together(softgpu: Path) -> None:
    assert "mixed" in run(softgpu, "mixtures.py")
    books = manage.inspect(softgpu, 0)
    assert books["memory_free_bytes"] == books["memory_bytes"]
    assert books["unsupported"] == {}


@pytest.mark.parametrize("seed", range(3))
def test_every_kind_of_memory_comes_back_from_a_full_device(softgpu: Path, seed: int) -> None:
    assert "given back" in run(softgpu, "hoard.py", str(seed))
    books = manage.inspect(softgpu, 0)
    assert books["memory_free_bytes"] == books["memory_bytes"]
