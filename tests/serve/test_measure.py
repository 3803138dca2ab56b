"""Every size is measured within the budget, and sizes that are too slow are skipped."""

from collections.abc import Sequence

import numpy as np
import pytest

from cotenant.errors import ConfigError
from cotenant.serve.model.event import ModelSpec
from cotenant.serve.model.tensor import Datatype, TensorSpec
from cotenant.serve.protocol.oip.tensor import Array
from cotenant.serve.runtime.measure import (
    batches_to_measure,
    measure,
    synthetic_inputs,
    widths_to_measure,
)

pytestmark = pytest.mark.live

MILLISECOND_NS = 1_000_000


class SimulatedTimer:
    """A simulated timer; loaded runs take twice as long.

    No other time passes.
    """

    all_units = 4

    def __init__(self, row_ns: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._row_ns = row_ns
        self._now_ns = 0
        self.sizes: list[tuple[int, int]] = []
        monkeypatch.setattr("cotenant.serve.runtime.measure.monotonic_ns", lambda: self._now_ns)

    def alone(self, inputs: Sequence[Array], rows: int, units: int) -> int:
        assert inputs[0].shape[0] == rows
        self.sizes.append((units, rows))
        took_ns = self._row_ns * rows // units
        self._now_ns += took_ns
        return took_ns

    def loaded(self, inputs: Sequence[Array], rows: int, units: int, until: int) -> list[int]:
        if units == self.all_units:
            return []
        self._now_ns = max(self._now_ns, until)
        return [2 * self._row_ns * rows // units] * 9

    def close(self) -> None:
        """Do nothing."""


def inputs(rows: int) -> list[Array]:
    return [np.zeros((rows, 1), np.float32)]


def test_all_sizes_are_measured_alone_and_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = SimulatedTimer(4 * MILLISECOND_NS, monkeypatch)
    fractions: list[float] = []
    samples = measure(timer, inputs, (1, 2, 4), (1, 2, 8), 20_000 * MILLISECOND_NS, fractions.append)
    sizes = [(units, rows) for units in (1, 2, 4) for rows in (1, 2, 8)]
    assert [(time.units, time.rows) for time in samples.alone] == sizes
    assert [(time.units, time.rows) for time in samples.loaded] == sizes
    for alone, loaded in zip(samples.alone, samples.loaded, strict=True):
        assert alone.typical_ns == alone.high_ns == 4 * MILLISECOND_NS * alone.rows // alone.units
        assert loaded.typical_ns == alone.typical_ns * (1 if loaded.units == 4 else 2)
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1
    assert samples.runs > len(sizes)
    assert samples.spent_ns == pytest.approx(20_000 * MILLISECOND_NS, rel=0.01)


def test_size_too_slow_for_the_budget_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = SimulatedTimer(40 * MILLISECOND_NS, monkeypatch)
    samples = measure(timer, inputs, (1, 2, 4), (1, 64), 1000 * MILLISECOND_NS, lambda fraction: None)
    assert (1, 64) not in timer.sizes
    assert [(time.units, time.rows) for time in samples.alone] == [(1, 1), (2, 1), (4, 1)]


@pytest.mark.parametrize("count,sizes", [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8))])
def test_measured_sizes_are_powers_of_two_and_the_maximum(count: int, sizes: tuple[int, ...]) -> None:
    assert widths_to_measure(count) == sizes
    assert batches_to_measure(ModelSpec("m", "1", "t", (), (), count)) == sizes


def test_synthetic_inputs_have_the_model_or_configured_shape() -> None:
    def spec(*shape: int, max_batch: int = 4) -> ModelSpec:
        tensors = (TensorSpec("X", Datatype.FP32, shape), TensorSpec("IDS", Datatype.INT64, shape))
        return ModelSpec("m", "1", "t", tensors, (), max_batch)

    assert [array.shape for array in synthetic_inputs(spec(-1, 3, 5), 2, {})] == [(2, 3, 5)] * 2
    assert [array.shape for array in synthetic_inputs(spec(-1, -1), 2, {"X": (7,)})] == [(2, 7), (2, 64)]
    assert [array.shape for array in synthetic_inputs(spec(3, max_batch=0), 1, {})] == [(3,)] * 2
    floats, indices = synthetic_inputs(spec(-1, 9), 3, {})
    assert 0 <= floats.min() < floats.max() < 1
    assert not indices.any()
    with pytest.raises(ConfigError, match="does not fit"):
        synthetic_inputs(spec(-1, 3), 1, {"X": (4,)})
