"""Measurement of run times: every batch size on every width, in rounds, within a time budget."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

import numpy as np

from cotenant.errors import ConfigError
from cotenant.runner.clock import monotonic_ns
from cotenant.serve.model.event import ModelSpec
from cotenant.serve.model.run_times import RunTime
from cotenant.serve.model.tensor import Datatype
from cotenant.serve.protocol.oip.tensor import NUMPY, Array
from cotenant.serve.runtime.model import LoadedModel, ModelLoadError
from cotenant.serve.runtime.standalone import StandaloneRuntime
from cotenant.units.instant import Duration, Instant
from cotenant.units.value import Value

FREE_DIMENSION: Final = 64
"""Size of a free dimension, other than the batch, if none is given. Our choice."""
_TURN_NS: Final = 40_000_000
"""Time for one size per round; short, so that disturbances affect all sizes alike. Our choice."""
_MIN_RUNS: Final = 2
_MAX_RUNS: Final = 4000
"""Maximum runs per size; more would not improve the result."""
_MIN_LOADED_RUNS: Final = 5
"""Minimum loaded runs of a size; with fewer, runs alone are used as well."""
_HIGH_QUANTILE: Final = 0.99

Progress = Callable[[float], None]
"""Called with the fraction of the time budget that was used."""


class RunTimer(Protocol):
    """Runs a model and measures the time."""

    all_units: int

    def alone(self, inputs: Sequence[Array], rows: int, units: int) -> Duration:
        """Return the time of one run while the rest of the device is idle."""
        ...

    def loaded(self, inputs: Sequence[Array], rows: int, units: int, until: Instant) -> list[Duration]:
        """Return times of runs until an instant while the rest of the device runs the same; empty if not possible."""
        ...

    def close(self) -> None:
        """Release its resources."""
        ...


class RunTimeSamples(Value, frozen=True):
    """Measured times by units and rows."""

    loaded: tuple[RunTime, ...]
    alone: tuple[RunTime, ...]
    runs: int
    spent_ns: Duration


class CpuRunTimer:
    """Measures a model on cores, with one pinned thread per core, as in the server."""

    def __init__(self, model: LoadedModel, cores: Sequence[int]) -> None:
        """`cores` are the machine's core numbers."""
        self.all_units = len(cores)
        self._model = model
        self._cores = tuple(cores)
        self._threads = [ThreadPoolExecutor(1, f"core-{core}", _pin, ({core},)) for core in cores]

    def alone(self, inputs: Sequence[Array], rows: int, units: int) -> Duration:
        """Run on the first cores."""
        del rows
        return self._threads[0].submit(self._run, inputs, self._cores[:units]).result()

    def loaded(self, inputs: Sequence[Array], rows: int, units: int, until: Instant) -> list[Duration]:
        """Run as many copies as fit; count only runs that started while all copies were running."""
        del rows
        groups = [self._cores[index : index + units] for index in range(0, self.all_units - units + 1, units)]
        if len(groups) < 2:
            return []
        begin = threading.Barrier(len(groups))
        over = threading.Event()

        def work(cores: Sequence[int]) -> list[Duration]:
            times = []
            begin.wait()
            while not over.is_set():
                times.append(self._run(inputs, cores))
                if monotonic_ns() >= until and len(times) > _MIN_RUNS:
                    over.set()
            return times[1:-1] or times[1:]  # the first run warms up, and the last one may have ended alone

        threads = [self._threads[self._cores.index(cores[0])] for cores in groups]
        jobs = [thread.submit(work, cores) for thread, cores in zip(threads, groups, strict=True)]
        return [took_ns for job in jobs for took_ns in job.result()]

    def close(self) -> None:
        """Stop the threads."""
        for thread in self._threads:
            thread.shutdown()

    def _run(self, inputs: Sequence[Array], cores: Sequence[int]) -> Duration:
        began = monotonic_ns()
        self._model.run(inputs, cores)
        return monotonic_ns() - began


class StandaloneRunTimer:
    """Measures a model on any runtime, one run at a time."""

    def __init__(self, model: LoadedModel, runtime: StandaloneRuntime) -> None:
        """The runtime is ready."""
        self.all_units = runtime.runtime.all_units
        self._model = model
        self._runtime = runtime

    def alone(self, inputs: Sequence[Array], rows: int, units: int) -> Duration:
        """Run once; the runtime measures the time."""
        outcome = self._runtime.run(self._model, inputs, rows, units)
        if outcome.failure:
            raise ModelLoadError(outcome.failure)
        return outcome.took_ns

    def loaded(self, inputs: Sequence[Array], rows: int, units: int, until: Instant) -> list[Duration]:
        """Return nothing: there is one worker per width, so runs cannot overlap."""
        del inputs, rows, units, until
        return []

    def close(self) -> None:
        """Do nothing; the runtime belongs to the caller."""


def _pin(cores: set[int]) -> None:
    os.sched_setaffinity(0, cores)


def widths_to_measure(all_units: int) -> tuple[int, ...]:
    """Return powers of two, and all units."""
    return tuple(
        sorted({1 << power for power in range(all_units.bit_length()) if 1 << power < all_units} | {all_units})
    )


def batches_to_measure(spec: ModelSpec) -> tuple[int, ...]:
    """Return powers of two, and the largest batch; one for a model without batching."""
    return widths_to_measure(spec.max_batch or 1)


def synthetic_inputs(spec: ModelSpec, rows: int, shapes: dict[str, tuple[int, ...]]) -> list[Array]:
    """Return inputs of this many rows: values between 0 and 1, or zeros for integers, which may be indices."""
    rng = np.random.default_rng(1)
    arrays = []
    for tensor in spec.inputs:
        shape = shape_of_row(tensor.name, tensor.shape, shapes, batched=bool(spec.max_batch))
        full_shape = (rows, *shape) if spec.max_batch else shape
        kind = NUMPY[tensor.datatype]
        if tensor.datatype in (Datatype.FP16, Datatype.FP32, Datatype.FP64):
            array: Any = rng.random(full_shape).astype(kind)
        elif tensor.datatype is Datatype.BYTES:
            array = np.full(full_shape, b"", np.object_)
        else:
            array = np.zeros(full_shape, kind)
        arrays.append(array)
    return arrays


def shape_of_row(
    name: str, shape: Sequence[int], shapes: dict[str, tuple[int, ...]], *, batched: bool
) -> tuple[int, ...]:
    """Return the shape of one row, with the given or default sizes for free dimensions."""
    inner = tuple(shape[1:] if batched else shape)
    configured = shapes.get(name)
    if configured is None:
        return tuple(FREE_DIMENSION if size < 0 else size for size in inner)
    if len(configured) != len(inner) or any(
        size >= 0 and size != configured_size for size, configured_size in zip(inner, configured, strict=True)
    ):
        text = ",".join(map(str, configured))
        raise ConfigError("--shape", f"{name}:{text}", f"does not fit {list(inner)}, the shape of one row")
    return configured


class _RunSamples:
    """The times of each size."""

    def __init__(self) -> None:
        self.times: dict[tuple[int, int], list[Duration]] = {}

    def add(self, cell: tuple[int, int], times: Sequence[Duration]) -> None:
        self.times.setdefault(cell, []).extend(times)

    def count(self, cell: tuple[int, int]) -> int:
        return len(self.times.get(cell, ()))


def measure(
    timer: RunTimer,
    inputs: Callable[[int], Sequence[Array]],
    widths: Sequence[int],
    batches: Sequence[int],
    budget_ns: Duration,
    progress: Progress,
) -> RunTimeSamples:
    """Measure all sizes in rounds until the budget is used; skip a size that is too slow for the remaining time.

    The smallest size is run on every width before the budget starts, so that start-up costs do not count.
    """
    inputs_by_rows = {rows: inputs(rows) for rows in batches}
    for units in widths:
        timer.alone(inputs_by_rows[batches[0]], batches[0], units)
    began = monotonic_ns()
    end = began + budget_ns
    cells = [(units, rows) for rows in _outer_first(batches) for units in _outer_first(widths)]
    alone, loaded = _RunSamples(), _RunSamples()
    fastest: dict[tuple[int, int], Duration] = {}
    turn_ns = min(_TURN_NS, budget_ns // (4 * len(cells)))
    turn = 0
    while True:
        progressed = False
        for cell in cells:
            now = monotonic_ns()
            progress(min((now - began) / budget_ns, 1.0))
            units, rows = cell
            left_ns = end - now
            needed_ns = _expected(fastest, cell) * (_MIN_RUNS + (cell not in fastest))
            # Every short size is measured at least once, even if the machine stalled during its turn.
            if needed_ns > left_ns and (turn or needed_ns > budget_ns // len(cells)):
                continue
            if alone.count(cell) + loaded.count(cell) >= _MAX_RUNS:
                continue
            progressed = True
            until = min(now + turn_ns * bool(turn), end)  # the first round measures every size once
            if turn % 2 and (times := timer.loaded(inputs_by_rows[rows], rows, units, until)):
                loaded.add(cell, times)
                continue
            # The first run is a warm-up: the caches hold data of another size.
            times = [timer.alone(inputs_by_rows[rows], rows, units)]
            while len(times) <= _MIN_RUNS or (monotonic_ns() < until and len(times) < _MAX_RUNS):
                times.append(timer.alone(inputs_by_rows[rows], rows, units))
            alone.add(cell, times[1:])
            fastest[cell] = min(times)
        turn += 1
        if not progressed:
            break
    progress(1.0)
    runs = sum(len(cell_times) for samples in (alone, loaded) for cell_times in samples.times.values())
    under_load = {
        cell: loaded.times[cell] if loaded.count(cell) >= _MIN_LOADED_RUNS else loaded.times.get(cell, []) + alone_times
        for cell, alone_times in alone.times.items()
    }
    return RunTimeSamples(_run_times(under_load), _run_times(alone.times), runs, monotonic_ns() - began)


def _outer_first(values: Sequence[int]) -> list[int]:
    """Return the smallest and the largest value first: if time is short, the extremes are the most useful."""
    return [*values[:1], *values[-1:], *values[1:-1]] if len(values) > 1 else list(values)


def _expected(fastest: dict[tuple[int, int], Duration], cell: tuple[int, int]) -> Duration:
    """Return an upper bound from other sizes: time grows at most in proportion to rows and falls with units."""
    if cell in fastest:
        return fastest[cell]
    units, rows = cell
    bounds_ns = [
        took_ns * max(rows / other_rows, 1) * max(other_units / units, 1)
        for (other_units, other_rows), took_ns in fastest.items()
    ]
    return round(min(bounds_ns, default=0))


def _run_times(samples: dict[tuple[int, int], list[Duration]]) -> tuple[RunTime, ...]:
    """Return the median of each size, and a 99th percentile from all sizes together, since one size has few runs."""
    medians = {cell: int(np.median(times)) for cell, times in samples.items()}
    ratios = [took_ns / medians[cell] for cell, times in samples.items() for took_ns in times]
    high_ratio = float(np.quantile(ratios, _HIGH_QUANTILE)) if ratios else 1.0
    run_times = []
    for units, rows in sorted(samples):
        typical_ns = max(medians[units, rows], 1)
        own_high = float(np.quantile(samples[units, rows], _HIGH_QUANTILE))
        run_times.append(
            RunTime(units, rows, typical_ns, max(typical_ns, round(max(own_high, typical_ns * high_ratio))))
        )
    return tuple(run_times)
