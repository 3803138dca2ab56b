"""Which services and trainings do simulated clusters know, and what was measured of each? Rows for sim/physics.

A service is a model of RaPP's (V100, latency by share of the SMs); a training one of MISO's (A100, time of a step by
MIG slice, use and memory as nvidia-smi told them). Kernel lengths and memory-bound parts are those of Orion's list of
the same family of models (V100), or the mean of its lists. MISO's slices that were not measured, because the job did
not fit their memory, follow from those that were.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from scipy.optimize import nnls

from cotenant.domain.timeline import Timeline
from cotenant.format.measured.miso import Miso
from cotenant.format.measured.rapp import Surface
from cotenant.sim.device import DeviceConfig
from cotenant.sim.physics import share
from cotenant.sim.physics.catalogue import SHARES_PCT, SLICES

_EVERY: Final = 3
"""Of RaPP's models, by name."""
_BATCHES: Final = (8, 4, 1)
"""In turns."""
_LEAN: Final = 0.5
_FAMILIES: Final = {"bert": "bert", "mobilenet": "mobilenetv2", "resnet": "resnet50", "transformer": "transformer_xl"}
"""MISO's names to Orion's."""
_WHOLE_QUOTA: Final = 100


class Kernels:
    """What a list of kernels says of a family: lengths in microseconds, and which part of the time is memory-bound."""

    def __init__(self, stream: Timeline) -> None:
        """Sum up the list."""
        times = [one.device_ns for one in stream.activities]
        whole = max(sum(times), 1)
        self.mean_us = whole / len(times) / 1000
        self.longest_us = max(times) / 1000
        self.left_us = sum(time * time for time in times) / (2 * whole) / 1000
        self.memory = sum(one.device_ns for one in stream.activities if one.memory_bound) / whole


def service_rows(surface: Surface, streams: Mapping[str, Timeline], config: DeviceConfig) -> list[str]:
    """Name, latency (us), busy and wide parts of it, memory-bound part, kernels (us), speeds (%)."""
    known = {name.split("_")[0]: Kernels(stream) for name, stream in sorted(streams.items()) if name.endswith("_fwd")}
    rows = []
    models = sorted({model for model, _ in surface})[::_EVERY]
    for place, model in enumerate(models):
        batch = _BATCHES[place % len(_BATCHES)]
        curve = surface[model, batch][_WHOLE_QUOTA]
        speeds = _even([1 / curve[pct] for pct in SHARES_PCT])
        latency_ns = 1e6 * min(curve.values())
        sms = share.caps(SHARES_PCT, config)
        even = {count: latency_ns / speed for count, speed in zip(sms, speeds, strict=True)}
        request, _ = share.fit_request(even, _LEAN)
        wide = min(1.0, request.wide_sm_ns / config.sm_count / latency_ns)
        busy = min(1.0, wide + request.narrow_ns / latency_ns)
        own = known.get(model.replace("_", ""))
        rows.append(_row(f"{model}-b{batch}", latency_ns / 1000, busy, wide, own, known, speeds))
    return rows


def training_rows(miso: Miso, streams: Mapping[str, Timeline]) -> list[str]:
    """The same for a step; then memory (MiB), and speeds on the slices."""
    known: dict[str, Kernels] = {}
    for name, stream in sorted(streams.items()):
        if name.endswith("_fb1"):
            known.setdefault(name.rsplit("_", 2)[0], Kernels(stream))
    rows = []
    for (model, batch), step_s in sorted(miso.step_s.items()):
        flat, wide_s = _law(step_s)
        whole_s = step_s[SLICES[-1]]
        times = [step_s.get(slices, flat + wide_s * SLICES[-1] / slices) for slices in SLICES]
        speeds = _even([1 / took for took in times])
        busy = miso.busy[model, batch]
        wide = min(busy, wide_s / (flat + wide_s))
        own = known.get(_FAMILIES.get(model, ""))
        memory = min(1.0, miso.memory_busy[model, batch] / busy)
        row = _row(f"{model}-b{batch}", 1e6 * whole_s, busy, wide, own, known, speeds, memory)
        rows.append(f"{row} {miso.memory_mib[model, batch]}")
    return rows


def _law(step_s: Mapping[int, float]) -> tuple[float, float]:
    """Seconds of a step that no slice changes, and seconds on the whole GPU of what shrinks with it."""
    slices = np.array(sorted(step_s))
    took = np.array([step_s[one] for one in slices])
    terms = np.stack([np.ones(len(slices)), SLICES[-1] / slices], axis=1) / took[:, None]
    (flat, wide), _ = nnls(terms, np.ones(len(slices)))
    return float(flat), float(wide)


def _even(speeds: Sequence[float]) -> list[float]:
    """More is never slower; the most is 1."""
    rising = np.maximum.accumulate(np.array(speeds))
    return [float(one) for one in rising / rising[-1]]


def _row(
    name: str,
    took_us: float,
    busy: float,
    wide: float,
    own: Kernels | None,
    known: Mapping[str, Kernels],
    speeds: Sequence[float],
    memory: float | None = None,
) -> str:
    of = [own] if own else list(known.values())
    lengths = np.mean([(one.mean_us, one.longest_us, one.left_us) for one in of], axis=0)
    if memory is None:
        memory = statistics.fmean(one.memory for one in of)
    parts = " ".join(f"{100 * one:.0f}" for one in (busy, wide, memory))
    whole = next(place for place, one in enumerate(speeds) if round(100 * one) == 100)  # from there on it says nothing
    curve = ",".join(f"{100 * one:.0f}" for one in speeds[: whole + 1])
    kernels = " ".join(f"{one:.0f}" for one in lengths)
    return f"{name} {took_us:.0f} {parts} {kernels} {curve}"
