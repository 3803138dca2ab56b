"""How hard do property tests look, and in which order? The same cases every time in CI, new ones on every other run."""

import os

import pytest
from hypothesis import settings

from tests.effort import EXAMPLES, IS_SOAK

# No deadline: the machine is shared, and a test never judges a wall-clock duration.
settings.register_profile("developer", deadline=None, print_blob=True, max_examples=EXAMPLES)
settings.register_profile("ci", deadline=None, derandomize=True, database=None, max_examples=EXAMPLES)
settings.load_profile("ci" if os.environ.get("CI") else "developer")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow ones first: begun last, one of them would run alone on one core. In a soak, none of them is a hang."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    for item in items if IS_SOAK else ():
        item.add_marker(pytest.mark.timeout(7200), append=False)
