"""Hypothesis profiles, the order of tests, the retry rule for live tests, and the fixtures that many tests share."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from cotenant.softgpu import manage
from tests.support.effort import EXAMPLES, IS_SOAK
from tests.support.node_processes import NodeHarness

# No deadline: the machine is shared, and a test never asserts a wall-clock duration.
settings.register_profile("developer", deadline=None, print_blob=True, max_examples=EXAMPLES)
settings.register_profile("ci", deadline=None, derandomize=True, database=None, max_examples=EXAMPLES)
settings.load_profile("ci" if os.environ.get("CI") else "developer")

# A shell starts background jobs with SIGINT ignored, and programs that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Programs that tests start keep what their hook caches here, not in the developer's home directory.
_CACHE = tempfile.TemporaryDirectory(prefix="cotenant-cache-")
os.environ["COTENANT_CACHE"] = _CACHE.name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run slow tests first, so that none of them runs alone at the end, and retry once a test that starts processes."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    for item in items:
        if IS_SOAK:
            item.add_marker(pytest.mark.timeout(7200), append=False)
        elif any(item.get_closest_marker(name) is not None for name in ("live", "kubernetes")):
            # The summary names the test; CONTRIBUTING.md gives the reason. pytest-timeout has one timer for all
            # attempts of a test: a second attempt after a timeout could run forever.
            item.add_marker(pytest.mark.flaky(reruns=1, rerun_except=[r"Timeout \(>"]))


@pytest.fixture
def node_harness() -> Iterator[NodeHarness]:
    with NodeHarness() as made:
        yield made


@pytest.fixture
def softgpu(tmp_path: Path) -> Iterator[Path]:
    """Create one software V100 and return its directory."""
    directory = tmp_path / "gpu"
    manage.create(directory, "v100", 1)
    yield directory
    manage.destroy(directory)
