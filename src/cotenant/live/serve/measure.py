"""How long do a model's runs take? Every size on every part of the device, in turns, within a bounded time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

import numpy as np

from cotenant.domain.instant import Duration, Instant
from cotenant.domain.runtimes import RunTime
from cotenant.domain.serving import ModelSpec
from cotenant.domain.tensor import Datatype
from cotenant.domain.value import Value
from cotenant.errors import ConfigError
from cotenant.format.tensor import NUMPY, Array
from cotenant.live.clock import monotonic_ns
from cotenant.live.serve.model import LoadFailed, Runnable
from cotenant.live.serve.solo import Solo

FREE_DIMENSION: Final = 64
"""For a dimension that a model leaves free, other than the batch, where nobody says. Our choice."""
_TURN_NS: Final = 40_000_000
"""For one size at a time: what else the machine does then hits all sizes alike. Our choice."""
_LEAST_RUNS: Final = 2
_MOST_RUNS: Final = 4000
"""Of one size: more would tell no more."""
_ENOUGH: Final = 5
"""Runs in company by which a size is judged; with fewer, those alone count as well."""
_RARE: Final = 0.99

Progress = Callable[[float], None]
"""Called with the part of the time that is spent."""


class Bench(Protocol):
    """Something on which a model can be run and timed."""

    all_units: int

    def alone(self, inputs: Sequence[Array], rows: int, units: int) -> Duration:
        """One run while the rest of the device is idle."""
        ...

    def in_company(self, inputs: Sequence[Array], rows: int, units: int, until: Instant) -> list[Duration]:
        """Runs until then while the rest of the device does the same; none where that cannot be."""
        ...

    def close(self) -> None:
        """Let go of what is its own."""
        ...


class Samples(Value, frozen=True):
    """What was measured, by units and rows."""

    in_company: tuple[RunTime, ...]
    alone: tuple[RunTime, ...]
    runs: int
    spent_ns: Duration


class CpuBench:
    """A model on cores: a thread pinned to each, as in the server."""

    def __init__(self, model: Runnable, cores: Sequence[int]) -> None:
        """The numbers of the cores are the machine's own."""
        self.all_units = len(cores)
        self._model = model
        self._cores = tuple(cores)
        self._leaders = [ThreadPoolExecutor(1, f"core-{core}", _pin, ({core},)) for core in cores]

    def alone(self, inputs: Sequence[Array], rows: int, units: int) -> Duration:
        """One run on the first cores."""
        del rows
        return self._leaders[0].submit(self._run, inputs, self._cores[:units]).result()

    def in_company(self, inputs: Sequence[Array], rows: int, units: int, until: Instant) -> list[Duration]:
        """As many at once as there is room for; of each, only runs that began while all were at it."""
        del rows
        groups = [self._cores[place : place + units] for place in range(0, self.all_units - units + 1, units)]
        if len(groups) < 2:
            return []
        begin = threading.Barrier(len(groups))
        over = threading.Event()

        def work(cores: Sequence[int]) -> list[Duration]:
            found = []
            begin.wait()
            while not over.is_set():
                found.append(self._run(inputs, cores))
                if monotonic_ns() >= until and len(found) > _LEAST_RUNS:
                    over.set()
            return found[1:-1] or found[1:]  # the first warms up, and the last may have ended by itself

        leaders = [self._leaders[self._cores.index(cores[0])] for cores in groups]
        jobs = [leader.submit(work, cores) for leader, cores in zip(leaders, groups, strict=True)]
        return [took for job in jobs for took in job.result()]

    def close(self) -> None:
        """End its threads."""
        for leader in self._leaders:
            leader.shutdown()

    def _run(self, inputs: Sequence[Array], cores: Sequence[int]) -> Duration:
        began = monotonic_ns()
        self._model.run(inputs, cores)
        return monotonic_ns() - began


class SoloBench:
    """A model on any runtime, one run at a time."""

    def __init__(self, model: Runnable, solo: Solo) -> None:
        """The runtime is ready."""
        self.all_units = solo.runtime.all_units
        self._model = model
        self._solo = solo

    def alone(self, inputs: Sequence[Array], rows: int, units: int) -> Duration:
        """One run, as the runtime timed it."""
        outcome = self._solo.run(self._model, inputs, rows, units)
        if outcome.failure:
            raise LoadFailed(outcome.failure)
        return outcome.took_ns

    def in_company(self, inputs: Sequence[Array], rows: int, units: int, until: Instant) -> list[Duration]:
        """There is one worker for each number of units, so nobody to keep company with."""
        del inputs, rows, units, until
        return []

    def close(self) -> None:
        """Nothing is its own."""


def _pin(cores: set[int]) -> None:
    os.sched_setaffinity(0, cores)


def widths_to_measure(all_units: int) -> tuple[int, ...]:
    """Doubling, and all."""
    return tuple(
        sorted({1 << power for power in range(all_units.bit_length()) if 1 << power < all_units} | {all_units})
    )


def batches_to_measure(spec: ModelSpec) -> tuple[int, ...]:
    """Doubling, and the largest; of a model without batches, one."""
    return widths_to_measure(spec.max_batch or 1)


def made_inputs(spec: ModelSpec, rows: int, said: dict[str, tuple[int, ...]]) -> list[Array]:
    """Inputs for so many rows: numbers between 0 and 1, zeros where they may be places in a table."""
    dice = np.random.default_rng(1)
    made = []
    for one in spec.inputs:
        shape = shape_of_row(one.name, one.shape, said, batched=bool(spec.max_batch))
        full = (rows, *shape) if spec.max_batch else shape
        kind = NUMPY[one.datatype]
        if one.datatype in (Datatype.FP16, Datatype.FP32, Datatype.FP64):
            array: Any = dice.random(full).astype(kind)
        elif one.datatype is Datatype.BYTES:
            array = np.full(full, b"", np.object_)
        else:
            array = np.zeros(full, kind)
        made.append(array)
    return made


def shape_of_row(
    name: str, shape: Sequence[int], said: dict[str, tuple[int, ...]], *, batched: bool
) -> tuple[int, ...]:
    """The shape of one row's tensor, as said or with a usual size for what is free."""
    inner = tuple(shape[1:] if batched else shape)
    wanted = said.get(name)
    if wanted is None:
        return tuple(FREE_DIMENSION if one < 0 else one for one in inner)
    if len(wanted) != len(inner) or any(one >= 0 and one != two for one, two in zip(inner, wanted, strict=True)):
        shown = ",".join(map(str, wanted))
        raise ConfigError("--shape", f"{name}:{shown}", f"does not fit {list(inner)}, the shape of one row")
    return wanted


class _Taken:
    """The times of each size, alone or in company."""

    def __init__(self) -> None:
        self.times: dict[tuple[int, int], list[Duration]] = {}

    def add(self, cell: tuple[int, int], times: Sequence[Duration]) -> None:
        self.times.setdefault(cell, []).extend(times)

    def count(self, cell: tuple[int, int]) -> int:
        return len(self.times.get(cell, ()))


def measure(
    bench: Bench,
    inputs: Callable[[int], Sequence[Array]],
    widths: Sequence[int],
    batches: Sequence[int],
    budget_ns: Duration,
    progress: Progress,
) -> Samples:
    """Turn after turn over all sizes until the time is spent; a size too slow for the time left is passed over.

    What must be started for a width is, before the time counts: a run of the smallest size on each.
    """
    fed = {rows: inputs(rows) for rows in batches}
    for units in widths:
        bench.alone(fed[batches[0]], batches[0], units)
    began = monotonic_ns()
    end = began + budget_ns
    cells = [(units, rows) for rows in _outer_first(batches) for units in _outer_first(widths)]
    alone, company = _Taken(), _Taken()
    known: dict[tuple[int, int], Duration] = {}
    turn_ns = min(_TURN_NS, budget_ns // (4 * len(cells)))
    turn = 0
    while True:
        did = False
        for cell in cells:
            now = monotonic_ns()
            progress(min((now - began) / budget_ns, 1.0))
            units, rows = cell
            left_ns = end - now
            needed_ns = _expected(known, cell) * (_LEAST_RUNS + (cell not in known))
            # Once, whatever is short is measured: a machine that stands still for a moment must not leave it out.
            if needed_ns > left_ns and (turn or needed_ns > budget_ns // len(cells)):
                continue
            if alone.count(cell) + company.count(cell) >= _MOST_RUNS:
                continue
            did = True
            until = min(now + turn_ns * bool(turn), end)  # the first turn only sees that each is known
            if turn % 2 and (found := bench.in_company(fed[rows], rows, units, until)):
                company.add(cell, found)
                continue
            took = [bench.alone(fed[rows], rows, units)]  # warms up: what it found in the caches was another size's
            while len(took) <= _LEAST_RUNS or (monotonic_ns() < until and len(took) < _MOST_RUNS):
                took.append(bench.alone(fed[rows], rows, units))
            alone.add(cell, took[1:])
            known[cell] = min(took)
        turn += 1
        if not did:
            break
    progress(1.0)
    runs = sum(len(one) for taken in (alone, company) for one in taken.times.values())
    loaded = {
        cell: company.times[cell] if company.count(cell) >= _ENOUGH else company.times.get(cell, []) + times
        for cell, times in alone.times.items()
    }
    return Samples(_run_times(loaded), _run_times(alone.times), runs, monotonic_ns() - began)


def _outer_first(values: Sequence[int]) -> list[int]:
    """The smallest and the largest before what is between them: if time is short, the ends tell the most."""
    return [*values[:1], *values[-1:], *values[1:-1]] if len(values) > 1 else list(values)


def _expected(known: dict[tuple[int, int], Duration], cell: tuple[int, int]) -> Duration:
    """At most this, by what is known of other sizes: fewer units never help, more rows take more in proportion."""
    if cell in known:
        return known[cell]
    units, rows = cell
    most = [
        took * max(rows / other_rows, 1) * max(other_units / units, 1)
        for (other_units, other_rows), took in known.items()
    ]
    return round(min(most, default=0))


def _run_times(taken: dict[tuple[int, int], list[Duration]]) -> tuple[RunTime, ...]:
    """The median of each size; what is rarely exceeded by all sizes together, since one alone has too few runs."""
    medians = {cell: int(np.median(times)) for cell, times in taken.items()}
    ratios = [took / medians[cell] for cell, times in taken.items() for took in times]
    rare = float(np.quantile(ratios, _RARE)) if ratios else 1.0
    found = []
    for units, rows in sorted(taken):
        typical = max(medians[units, rows], 1)
        own = float(np.quantile(taken[units, rows], _RARE))
        found.append(RunTime(units, rows, typical, max(typical, round(max(own, typical * rare)))))
    return tuple(found)
