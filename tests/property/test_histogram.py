"""Are quantiles as close as promised, and is merging as good as counting together?"""

import pytest

from tests.strategies import histogram_of


@pytest.mark.parametrize("percent", range(1, 101))
def test_a_percentage_of_a_hundred_is_that_many(percent: int) -> None:
    assert histogram_of(list(range(1, 101))).quantile(percent / 100) == percent
