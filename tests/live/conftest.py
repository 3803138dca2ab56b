"""A soft GPU for the tests that ask for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.live.softgpu import manage


@pytest.fixture
def softgpu(tmp_path: Path) -> Iterator[Path]:
    """A directory with one soft V100."""
    directory = tmp_path / "gpu"
    manage.create(directory, "v100", 1)
    yield directory
    manage.destroy(directory)
