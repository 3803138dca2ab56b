"""Fit of the duration model's parameters to the cases that may be fitted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np
from scipy.optimize import least_squares

from cotenant.profile.estimate.devices import Gpu
from cotenant.profile.estimate.duration import kernel_time
from cotenant.profile.estimate.kernels import KernelWork
from cotenant.profile.estimate.parameters import DurationParameters
from cotenant.profile.estimate.stream import latency_of
from cotenant_lab.study.models.cases import Case, HostTimes, device_of, stream_of

FREE: Final = (
    "matmul",
    "tensor",
    "convolution",
    "tensor_convolution",
    "winograd",
    "grouped",
    "depthwise",
    "pascal_watt",
    "turing_watt",
    "ada_watt",
)
"""Parameters that are fitted to whole models. `bandwidth` and `rows` are choices near operators timed alone;
`moves`, `kernel_ns`, `depth` and `tile` are choices."""
_LIMITS: Final = {"matmul": 1.0, "tensor": 0.95, "tensor_convolution": 1.2, "convolution": 1.1, "depthwise": 0.95}
_PRIOR: Final = 0.35
"""Standard deviation of a parameter's logarithm around the start: it keeps those that the cases hardly show."""
_DEVICE_BOUND: Final = 1.3
"""A case shows the device if its latency is at most this multiple of the estimated device time."""
_OPERATOR_NS: Final = (40e3, 45e3, 50e3, 55e3, 60e3, 65e3, 70e3, 75e3, 80e3)
_REQUEST_NS: Final = (0.0, 0.5e6, 1e6, 1.5e6, 2e6)
"""Candidates of host times: the machine of RaPP is slow."""


class FitResult(msgspec.Struct, frozen=True):
    """Fitted parameters, the number of cases, and the remaining spread of logarithms."""

    parameters: DurationParameters
    cases: int
    spread: float


def fit_parameters(cases: Sequence[Case], start: DurationParameters, report: Callable[[str], None]) -> FitResult:
    """Return the parameters nearest to the measured device times of the fitted cases."""
    rows: list[tuple[Case, Gpu, Counter[KernelWork]]] = []
    for case in cases:
        if not case.fitted:
            continue
        stream = stream_of(case, None, start)
        if case.host and case.measured_ms * 1e6 > _DEVICE_BOUND * stream.device_ns.point:
            continue
        works = Counter(_plain_name(kernel.work) for kernel in stream.kernels)
        rows.append((case, device_of(case), works))
    first = np.array([math.log(getattr(start, name)) for name in FREE])
    highest = np.array([math.log(_LIMITS.get(name, math.inf)) for name in FREE])

    def residuals(values: np.ndarray) -> np.ndarray:
        parameters = _with_values(start, values)
        errors = []
        for case, gpu, works in rows:
            total = sum(kernel_time(work, gpu, parameters).device_ns * count for work, count in works.items())
            if case.graph:
                total += 1000.0 * sum(works.values())
            errors.append(math.log(total / (case.measured_ms * 1e6)))
        return np.concatenate([np.array(errors), (values - first) / _PRIOR * 0.2])

    report(f"fit of {len(FREE)} parameters to {len(rows)} cases")
    bounds = (np.full(len(FREE), -np.inf), highest)
    found = least_squares(
        residuals, np.minimum(first, highest - 1e-6), bounds=bounds, loss="soft_l1", f_scale=0.1, max_nfev=10
    )
    spread = float(np.sqrt(np.mean(residuals(found.x)[: len(rows)] ** 2)))
    return FitResult(_with_values(start, found.x), len(rows), spread)


def fit_host(cases: Sequence[Case], parameters: DurationParameters) -> HostTimes:
    """Return the host times of the measuring machine, from the fitted cases that depend on it."""
    streams = [(case, stream_of(case, HostTimes(1.0, 0.0), parameters)) for case in cases if case.fitted and case.host]
    best, least = HostTimes(0.0, 0.0), math.inf
    for operator_ns in _OPERATOR_NS:
        for request_ns in _REQUEST_NS:
            total = 0.0
            for case, stream in streams:
                host = [
                    kernel.work.operators * operator_ns if kernel.work.operators else value
                    for kernel, value in zip(stream.kernels, stream.host_ns, strict=True)
                ]
                host[0] += request_ns
                found = latency_of([kernel.device_ns for kernel in stream.kernels], host, stream.options)
                total += abs(math.log(found / (case.measured_ms * 1e6)))
            if total < least:
                best, least = HostTimes(operator_ns, request_ns), total
    return best


def _plain_name(work: KernelWork) -> KernelWork:
    """Return the kernel without the tile in its name, which depends on the parameters."""
    return msgspec.structs.replace(work, function="")


def _with_values(start: DurationParameters, values: np.ndarray) -> DurationParameters:
    named = {name: float(math.exp(value)) for name, value in zip(FREE, values, strict=True)}
    return msgspec.structs.replace(start, **named)
