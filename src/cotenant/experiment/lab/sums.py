"""Does a measured list of kernels take the measured time on the device model?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from cotenant.domain.timeline import Timeline
from cotenant.experiment.lab.judge import Check, errors_of, relative
from cotenant.sim.device import preset
from cotenant.sim.physics.stream import busy_ns

TARGET: Final = 0.01


class Sum(msgspec.Struct, frozen=True, kw_only=True):
    """One list of kernels: what it took, what it takes on the model."""

    stream: str
    kernels: int
    measured_ms: float
    model_ms: float
    error: float


def judge_sums(streams: Mapping[str, Timeline]) -> tuple[Check, list[Sum]]:
    """Every list within the target, not only their median."""
    config = preset("v100")
    sums = []
    for name, stream in streams.items():
        measured_ns = sum(activity.device_ns for activity in stream.activities)
        model_ns = busy_ns(stream, config)
        sums.append(
            Sum(
                stream=name,
                kernels=len(stream.activities),
                measured_ms=measured_ns / 1e6,
                model_ms=model_ns / 1e6,
                error=relative(model_ns, measured_ns),
            )
        )
    errors = errors_of({one.stream: one.error for one in sums})
    return Check(name="kernel sums", errors=errors, target=TARGET, met=errors.worst <= TARGET, baselines={}), sums
