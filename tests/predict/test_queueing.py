"""Tests of the slowdown with queueing."""

import numpy as np
import pytest

from cotenant.predict.queueing import FULL, queued_slowdown


def test_same_interference_costs_more_at_high_load() -> None:
    loads = np.array([0.0, 0.3, 0.6, 0.8, 0.9])
    slowdowns = queued_slowdown(1.05, loads)
    assert slowdowns[0] == pytest.approx(1.05)
    assert (np.diff(slowdowns) > 0).all()
    assert slowdowns[3] == pytest.approx(1.05 * (1 + 0.84 / 0.32) / (1 + 0.8 / 0.4))


def test_requests_that_are_not_slowed_wait_as_alone_also_in_overload() -> None:
    assert queued_slowdown(1.0, np.array([0.0, 0.5, FULL, 1.0])) == pytest.approx(np.ones(4))
    assert np.isfinite(queued_slowdown(3.0, np.array([0.9, 1.0]))).all()
    assert queued_slowdown(1.01, 1.0) > 1.5  # slower requests at full load are an overload
