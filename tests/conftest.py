"""How hard do property tests look, and in which order? The same cases every time in CI, new ones on every other run."""

import os
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

from tests.effort import EXAMPLES, IS_SOAK

# No deadline: the machine is shared, and a test never judges a wall-clock duration.
settings.register_profile("developer", deadline=None, print_blob=True, max_examples=EXAMPLES)
settings.register_profile("ci", deadline=None, derandomize=True, database=None, max_examples=EXAMPLES)
settings.load_profile("ci" if os.environ.get("CI") else "developer")

_TESTS: Final = Path(__file__).parent
_REAL: Final = ("e2e", "live", "native", "parity")
"""Where tests start processes, which get a processor when the machine pleases."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow ones first: begun last, one of them would run alone on one core. In a soak, none of them is a hang."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    for item in items:
        if IS_SOAK:
            item.add_marker(pytest.mark.timeout(7200), append=False)
        elif item.path.relative_to(_TESTS).parts[0] in _REAL:
            item.add_marker(pytest.mark.flaky(reruns=1))  # and named in the summary: CONTRIBUTING.md says why
