"""Tests of knees of latency curves."""

import pytest

from cotenant.predict.knee import knees
from cotenant.serve.model.run_times import RunTime


def run_times(all_units: int, width_units: int, batches: tuple[int, ...] = (1, 4)) -> list[RunTime]:
    """Return times of work that at 4 rows fills `width_units`, and of a serial part."""
    all_widths = [1 << power for power in range(all_units.bit_length()) if 1 << power <= all_units]
    return [
        RunTime(units, rows, ns := 50_000 + round(1_000_000 * max(1, width_units * rows / 4 / units)), ns)
        for units in all_widths
        for rows in batches
    ]


@pytest.mark.parametrize("width_units", [1, 2, 4, 8])
def test_both_knees_are_at_the_width_of_the_work(width_units: int) -> None:
    result = knees(run_times(8, width_units), 8)
    assert result.rows == 4
    assert result.curve_units == width_units
    assert result.distance_units == abs(result.curve_units - result.model_units) <= 1
    assert result.model_error < 0.2


def test_batch_size_was_measured_with_every_number_of_units() -> None:
    times = [run_time for run_time in run_times(4, 4) if (run_time.units, run_time.rows) != (1, 4)]
    assert knees(times, 4).rows == 1


def test_knees_of_a_single_unit_are_one() -> None:
    result = knees(run_times(1, 1), 1)
    assert (result.curve_units, result.model_units) == (1, 1)


def test_knees_without_measurements_raise() -> None:
    with pytest.raises(ValueError, match="every number of units"):
        knees([], 4)
