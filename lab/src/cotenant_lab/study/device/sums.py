"""Compare the duration of measured lists of kernels with that on the device model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from cotenant.softgpu.sim.device import preset
from cotenant.workload.timeline import Timeline
from cotenant_lab.physics.stream import busy_ns
from cotenant_lab.study.error import ErrorCheck, errors_of, relative

TARGET: Final = 0.01


class KernelSum(msgspec.Struct, frozen=True, kw_only=True):
    """One list of kernels: its measured duration and that on the model."""

    stream: str
    kernels: int
    measured_ms: float
    model_ms: float
    error: float


def evaluate_sums(streams: Mapping[str, Timeline]) -> tuple[ErrorCheck, list[KernelSum]]:
    """Check that every list is within the target, not only their median."""
    config = preset("v100")
    sums = []
    for name, stream in streams.items():
        measured_ns = sum(activity.device_ns for activity in stream.activities)
        model_ns = busy_ns(stream, config)
        sums.append(
            KernelSum(
                stream=name,
                kernels=len(stream.activities),
                measured_ms=measured_ns / 1e6,
                model_ms=model_ns / 1e6,
                error=relative(model_ns, measured_ns),
            )
        )
    errors = errors_of({kernel_sum.stream: kernel_sum.error for kernel_sum in sums})
    return ErrorCheck(name="kernel sums", errors=errors, target=TARGET, met=errors.worst <= TARGET, baselines={}), sums
