"""Fixtures of pytest for programs that use a GPU; write `pytest_plugins = ["cotenant.testing"]` into conftest.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cotenant.operate import SoftwareGpus


@pytest.fixture
def software_gpu() -> Iterator[SoftwareGpus]:
    """Create one software V100 with a node of its own, and end both after the test."""
    with SoftwareGpus() as gpus:
        yield gpus
