"""What every end-to-end test may ask for."""

from collections.abc import Iterator

import pytest

from tests.e2e.stage import Stage


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage() as made:
        yield made
