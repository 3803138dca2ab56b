"""Processes of one model in one GPU instance: a process for the device model, fitted to their slowdown.

All processes are one MPS group and repeat the same request without a pause. A request is `PIECES` pieces, each a launch
by the host, a wide grid that uses every SM, and a narrow grid that uses a part of them. Parameters, as fractions of the
request's latency alone, are the host's pace, the wide time, the narrow time and the narrow width. The device model runs
once for every candidate (`slowdown_table`); the number of SMs does not matter, because grids are of one wave.

The latency alone by size of the instance determines its wide part before any two processes run together (`wide_parts`),
with the same request model that is fitted to latency against share.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from cotenant.softgpu.sim.device import Device, DeviceConfig, Kernel, Limits, ScriptClient, Step
from cotenant_lab.data.parvagpu import PointName
from cotenant_lab.physics import share

Cell: TypeAlias = tuple[PointName, int]
"""Model, instance and batch; number of processes."""

PIECES: Final = 24
GPC_SMS: Final = 14
_ALONE_NS: Final = 10_000_000
_REPEATS: Final = 9
_OFFSET: Final = 0.37  # of a request, between the starts of two processes, so that no two start together
_NEIGHBOUR: Final = (
    0.1  # weight of a cell of the same model elsewhere, one octave of batch or size away: times exp(-1/2)
)
_KNOWN_ALONE: Final = 0.1  # weight of the wide part by the latencies alone: as much as a neighbour
_SIZES: Final = 3  # minimum number of instance sizes to separate wide work
_LEAN: Final = 0.5
_LEAST_PART: Final = 0.02
_LIMITS: Final = Limits(clients=64, contexts=64, streams=64, events=1, ops=16384, records=64)


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate, as fractions of the latency alone; width in SMs of one GPC."""

    host: float
    wide: float
    narrow: float
    narrow_width: int


def candidates() -> list[Process]:
    """Return every candidate: bound by its launches (host 1) or by its kernels (host near 0)."""
    processes = []
    for step in range(1, 21):
        wide = step / 20
        for width in (1, 3, 5, 7):
            processes.append(Process(host=0.02, wide=wide, narrow=round(1 - wide, 6), narrow_width=width))
        for quarter in range(4):
            narrow = quarter / 4
            for width in (1, 5, 7) if narrow else (1,):
                if wide + narrow <= 1:
                    processes.append(Process(host=1.0, wide=wide, narrow=narrow, narrow_width=width))
    return processes


def latency_ns(process: Process, processes: int, config: DeviceConfig) -> float:
    """Return the mean time of a request once all processes run, on a device with a whole number of GPCs."""
    width = process.narrow_width * config.sm_count // GPC_SMS
    kernels = [Kernel(blocks=config.sm_count, block_ns=_part_ns(process.wide), blocks_per_sm=1)]
    steps = []
    host_ns = round(process.host * _ALONE_NS / PIECES)
    for _ in range(PIECES):
        steps.append(Step(host_ns, 0))
        if process.narrow:
            steps.append(Step(0, 1))
    if process.narrow:
        kernels.append(Kernel(blocks=width, block_ns=_part_ns(process.narrow), blocks_per_sm=1))
    steps.append(Step(0, None, sync=True))
    clients = [
        ScriptClient(steps=tuple(steps), repeats=_REPEATS, group_label=1, start_ns=round(index * _OFFSET * _ALONE_NS))
        for index in range(processes)
    ]
    results = Device(config, _LIMITS).run(kernels, clients)
    first_end_ns = min(result.repeat_ends_ns[-1] for result in results)
    times: list[int] = []
    for result in results:
        ends = [end_ns for end_ns in result.repeat_ends_ns if end_ns <= first_end_ns]
        times += [end - previous for previous, end in itertools.pairwise(ends[1:])]
    return sum(times) / len(times)


def slowdown_table(processes: list[Process], most_processes: int, config: DeviceConfig) -> Any:
    """Return latency together over latency alone by the device model, by candidate and number of processes less one."""
    rows = [[latency_ns(process, count, config) for count in range(1, most_processes + 1)] for process in processes]
    table = np.array(rows)
    return table / table[:, :1]


def wide_parts(alone_ns: Mapping[PointName, float]) -> dict[PointName, float]:
    """Return the fraction of its latency alone that scales with SMs, for each point, from its other sizes."""
    curves: dict[tuple[str, int], dict[int, float]] = {}
    for (model, gpcs, batch), latency in alone_ns.items():
        curves.setdefault((model, batch), {})[gpcs * GPC_SMS] = latency
    parts = {}
    for (model, batch), curve in curves.items():
        if len(curve) < _SIZES:
            continue
        request, _ = share.fit_request(curve, _LEAN)
        for sms, latency in curve.items():
            part = request.wide_sm_ns / sms / latency
            parts[model, sms // GPC_SMS, batch] = min(1.0, max(_LEAST_PART, part))
    return parts


def fit_processes(
    points: Sequence[PointName],
    slowdown: Mapping[Cell, float],
    wide: Mapping[PointName, float],
    processes: Sequence[Process],
    table: Any,
) -> list[int]:
    """Return the candidate for each point: nearest to its own cells, to nearby cells of its model, and to `wide`.

    Only the given cells are used. A point without known cells gets the first candidate.
    """
    costs = np.zeros((len(points), len(table)))
    for row, point in enumerate(points):
        for count in range(2, table.shape[1] + 1):
            measured = slowdown.get((point, count))
            if measured is not None:
                costs[row] += np.log(table[:, count - 1] / measured) ** 2
    models = np.array([point[0] for point in points])
    sizes = np.log2([point[1] for point in points])
    batches = np.log2([point[2] for point in points])
    distance = (batches[:, None] - batches) ** 2 + (sizes[:, None] - sizes) ** 2
    weights = _NEIGHBOUR * np.exp(-distance / 2) * (models[:, None] == models)
    np.fill_diagonal(weights, 1.0)
    costs = weights @ costs
    wide_of_candidate = np.log([process.wide for process in processes])
    for row, point in enumerate(points):
        if point in wide:
            costs[row] += _KNOWN_ALONE * (wide_of_candidate - np.log(wide[point])) ** 2
    return [int(best) for best in costs.argmin(axis=1)]


def _part_ns(fraction: float) -> int:
    return max(1, round(fraction * _ALONE_NS / PIECES))
