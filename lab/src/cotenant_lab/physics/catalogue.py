"""Fit the services and trainings of simulated clusters to published measurements.

A service is a model of RaPP's (V100, latency by share of the SMs); a training one of MISO's (A100, time of a step by
MIG slice, use and memory by nvidia-smi). Kernel lengths and memory-bound parts are those of Orion's list of
the same family of models (V100), or the mean of its lists. MISO's slices that were not measured, because the job did
not fit their memory, are extrapolated from the others.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from scipy.optimize import nnls

from cotenant.cluster.sim.physics.parameters import SHARES_PCT, SLICES, FittedParameters, FittedProgram
from cotenant.softgpu.sim.device import DeviceConfig
from cotenant.workload.timeline import Timeline
from cotenant_lab.data.miso import Miso
from cotenant_lab.data.rapp import Surface
from cotenant_lab.physics import share

_EVERY: Final = 3
"""One in this many of RaPP's models, by name, is used."""
_BATCHES: Final = (8, 4, 1)
"""In turn."""
_LEAN: Final = 0.5
_FAMILIES: Final = {"bert": "bert", "mobilenet": "mobilenetv2", "resnet": "resnet50", "transformer": "transformer_xl"}
"""Orion's name by MISO's."""
_WHOLE_QUOTA: Final = 100


class Kernels:
    """Kernel lengths in microseconds of a family, and the memory-bound fraction of the time."""

    def __init__(self, stream: Timeline) -> None:
        """Summarize the list."""
        times = [activity.device_ns for activity in stream.activities]
        total = max(sum(times), 1)
        self.mean_us = total / len(times) / 1000
        self.longest_us = max(times) / 1000
        self.left_us = sum(time * time for time in times) / (2 * total) / 1000
        self.memory = sum(activity.device_ns for activity in stream.activities if activity.memory_bound) / total


def service_rows(surface: Surface, streams: Mapping[str, Timeline], config: DeviceConfig) -> list[FittedProgram]:
    """Return the fitted services: latency and speeds by share from RaPP, kernels from Orion."""
    kernels = {name.split("_")[0]: Kernels(stream) for name, stream in sorted(streams.items()) if name.endswith("_fwd")}
    rows = []
    models = sorted({model for model, _ in surface})[::_EVERY]
    for index, model in enumerate(models):
        batch = _BATCHES[index % len(_BATCHES)]
        curve = surface[model, batch][_WHOLE_QUOTA]
        speeds = _monotonic([1 / curve[pct] for pct in SHARES_PCT])
        latency_ns = 1e6 * min(curve.values())
        sms = share.caps(SHARES_PCT, config)
        latency_by_sms = {count: latency_ns / speed for count, speed in zip(sms, speeds, strict=True)}
        request, _ = share.fit_request(latency_by_sms, _LEAN)
        wide = min(1.0, request.wide_sm_ns / config.sm_count / latency_ns)
        busy = min(1.0, wide + request.narrow_ns / latency_ns)
        own_kernels = kernels.get(model.replace("_", ""))
        rows.append(_row(f"{model}-b{batch}", latency_ns / 1000, busy, wide, own_kernels, kernels, speeds))
    return rows


def training_rows(miso: Miso, streams: Mapping[str, Timeline]) -> list[FittedProgram]:
    """Return the fitted trainings: step times, use and memory from MISO, kernels from Orion."""
    kernels: dict[str, Kernels] = {}
    for name, stream in sorted(streams.items()):
        if name.endswith("_fb1"):
            kernels.setdefault(name.rsplit("_", 2)[0], Kernels(stream))
    rows = []
    for (model, batch), step_s in sorted(miso.step_s.items()):
        flat, wide_s = _law(step_s)
        whole_s = step_s[SLICES[-1]]
        times = [step_s.get(slices, flat + wide_s * SLICES[-1] / slices) for slices in SLICES]
        speeds = _monotonic([1 / step for step in times])
        busy = miso.busy[model, batch]
        wide = min(busy, wide_s / (flat + wide_s))
        own_kernels = kernels.get(_FAMILIES.get(model, ""))
        memory = min(1.0, miso.memory_busy[model, batch] / busy)
        row = _row(f"{model}-b{batch}", 1e6 * whole_s, busy, wide, own_kernels, kernels, speeds, memory)
        rows.append(msgspec.structs.replace(row, memory_mib=miso.memory_mib[model, batch]))
    return rows


def _law(step_s: Mapping[int, float]) -> tuple[float, float]:
    """Return the seconds of a step that do not depend on the slice, and those on the whole GPU that scale with it."""
    slices = np.array(sorted(step_s))
    durations = np.array([step_s[count] for count in slices])
    columns = np.stack([np.ones(len(slices)), SLICES[-1] / slices], axis=1) / durations[:, None]
    (flat, wide), _ = nnls(columns, np.ones(len(slices)))
    return float(flat), float(wide)


def _monotonic(speeds: Sequence[float]) -> list[float]:
    """Make speeds monotonic with a maximum of 1."""
    rising = np.maximum.accumulate(np.array(speeds))
    return [float(speed) for speed in rising / rising[-1]]


def _row(
    name: str,
    took_us: float,
    busy: float,
    wide: float,
    own_kernels: Kernels | None,
    all_kernels: Mapping[str, Kernels],
    speeds: Sequence[float],
    memory: float | None = None,
) -> FittedProgram:
    sources = [own_kernels] if own_kernels else list(all_kernels.values())
    lengths = np.mean([(kernels.mean_us, kernels.longest_us, kernels.left_us) for kernels in sources], axis=0)
    if memory is None:
        memory = statistics.fmean(kernels.memory for kernels in sources)
    # Every speed after the first that equals that of the whole GPU equals it as well.
    last_index = next(index for index, speed in enumerate(speeds) if round(100 * speed) == 100)
    kernel_us, longest_us, remaining_us = (round(float(length)) for length in lengths)
    return FittedProgram(
        name,
        round(took_us),
        round(100 * busy),
        round(100 * wide),
        round(100 * memory),
        kernel_us,
        longest_us,
        remaining_us,
        tuple(round(100 * speed) for speed in speeds[: last_index + 1]),
    )


def encode_parameters(parameters: FittedParameters) -> bytes:
    """Return the content of parameters.json: a line for each source, service and training."""
    lines = ["{", f'"version": {parameters.version},', f'"made_by": {_json(parameters.made_by)},']
    lists = {"sources": parameters.sources, "services": parameters.services, "trainings": parameters.trainings}
    for number, (name, entries) in enumerate(lists.items(), start=1):
        body = ",\n".join(_json(entry) for entry in entries)
        lines.append(f'"{name}": [\n{body}\n]{"," if number < len(lists) else ""}')
    return "\n".join([*lines, "}", ""]).encode()


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()
