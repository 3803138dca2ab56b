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
        self.asked: list[tuple[int, int]] = []
        monkeypatch.setattr("cotenant.serve.runtime.measure.monotonic_ns", lambda: self._now_ns)

    def alone(self, inputs: Sequence[Array], rows: int, units: int) -> int:
        assert inputs[0].shape[0] == rows
        self.asked.append((units, rows))
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


def test_all_sizes_are_measured_alone_and_in_company(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = SimulatedTimer(4 * MILLISECOND_NS, monkeypatch)
    parts: list[float] = []
    found = measure(bench, inputs, (1, 2, 4), (1, 2, 8), 20_000 * MILLISECOND_NS, parts.append)
    sizes = [(units, rows) for units in (1, 2, 4) for rows in (1, 2, 8)]
    assert [(one.units, one.rows) for one in found.alone] == sizes
    assert [(one.units, one.rows) for one in found.loaded] == sizes
    for alone, company in zip(found.alone, found.loaded, strict=True):
        assert alone.typical_ns == alone.high_ns == 4 * MILLISECOND_NS * alone.rows // alone.units
        assert company.typical_ns == alone.typical_ns * (1 if company.units == 4 else 2)
    assert parts == sorted(parts)
    assert parts[-1] == 1
    assert found.runs > len(sizes)
    assert found.spent_ns == pytest.approx(20_000 * MILLISECOND_NS, rel=0.01)


def test_what_takes_longer_than_there_is_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = SimulatedTimer(40 * MILLISECOND_NS, monkeypatch)
    found = measure(bench, inputs, (1, 2, 4), (1, 64), 1000 * MILLISECOND_NS, lambda part: None)
    assert (1, 64) not in bench.asked
    assert [(one.units, one.rows) for one in found.alone] == [(1, 1), (2, 1), (4, 1)]


@pytest.mark.parametrize("count,sizes", [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8))])
def test_sizes_double_up_to_all(count: int, sizes: tuple[int, ...]) -> None:
    assert widths_to_measure(count) == sizes
    assert batches_to_measure(ModelSpec("m", "1", "t", (), (), count)) == sizes


def test_inputs_have_the_shape_of_the_model_or_the_one_that_is_said() -> None:
    def spec(*shape: int, max_batch: int = 4) -> ModelSpec:
        tensors = (TensorSpec("X", Datatype.FP32, shape), TensorSpec("IDS", Datatype.INT64, shape))
        return ModelSpec("m", "1", "t", tensors, (), max_batch)

    assert [one.shape for one in synthetic_inputs(spec(-1, 3, 5), 2, {})] == [(2, 3, 5)] * 2
    assert [one.shape for one in synthetic_inputs(spec(-1, -1), 2, {"X": (7,)})] == [(2, 7), (2, 64)]
    assert [one.shape for one in synthetic_inputs(spec(3, max_batch=0), 1, {})] == [(3,)] * 2
    floats, places = synthetic_inputs(spec(-1, 9), 3, {})
    assert 0 <= floats.min() < floats.max() < 1
    assert not places.any()
    with pytest.raises(ConfigError, match="does not fit"):
        synthetic_inputs(spec(-1, 3), 1, {"X": (4,)})
