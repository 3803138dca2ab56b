"""Tests of knees of latency curves."""

import pytest

from cotenant.predict.knee import knees
from cotenant.serve.model.run_times import RunTime


def measured(all_units: int, wide: int, batches: tuple[int, ...] = (1, 4)) -> list[RunTime]:
    """Work that at 4 rows is as wide as so many units, and a part that is not split at all."""
    units = [1 << power for power in range(all_units.bit_length()) if 1 << power <= all_units]
    return [
        RunTime(one, rows, ns := 50_000 + round(1_000_000 * max(1, wide * rows / 4 / one)), ns)
        for one in units
        for rows in batches
    ]


@pytest.mark.parametrize("wide", [1, 2, 4, 8])
def test_both_find_the_width_of_the_work(wide: int) -> None:
    found = knees(measured(8, wide), 8)
    assert found.rows == 4
    assert found.curve_units == wide
    assert found.distance_units == abs(found.curve_units - found.model_units) <= 1
    assert found.model_error < 0.2


def test_the_batch_is_one_that_was_measured_everywhere() -> None:
    times = [one for one in measured(4, 4) if (one.units, one.rows) != (1, 4)]
    assert knees(times, 4).rows == 1


def test_one_core_is_all_there_is() -> None:
    found = knees(measured(1, 1), 1)
    assert (found.curve_units, found.model_units) == (1, 1)


def test_nothing_measured_is_no_knee() -> None:
    with pytest.raises(ValueError, match="every number of units"):
        knees([], 4)
