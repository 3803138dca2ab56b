"""Correction factors of a GPU, learned from a few measured latencies and stored next to the profiles.

Three factors (arithmetic, memory, host) are fitted in the logarithm with a prior at 1, so that one measurement moves
them little where it says little: a model that is bound by memory teaches nothing about arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from cotenant.errors import ConfigError
from cotenant.profile.estimate.duration import Correction
from cotenant.profile.estimate.parameters import HOST_DOUBT
from cotenant.profile.estimate.stream import EstimatedStream, latency_of
from cotenant.units.value import Value

_PRIORS: Final = (0.35, 0.25, 2 * HOST_DOUBT)
"""Standard deviations of the logarithms of the factors before any measurement."""
_NOISE: Final = 0.05
_STEP: Final = 0.01
_ROUNDS: Final = 12
_LIMIT: Final = math.log(20)


class MeasuredLatency(Value, frozen=True):
    """A measured latency of a model, and the uncorrected estimate for it."""

    stream: EstimatedStream
    measured_ns: float


class CorrectionRow(Value, frozen=True):
    """One measurement before and after the correction."""

    name: str
    measured_ns: float
    before_ns: float
    after_ns: float


def learn_correction(measured: Sequence[MeasuredLatency]) -> tuple[Correction, list[CorrectionRow]]:
    """Return the factors that fit the measurements best, and what they do to each."""
    logs = np.zeros(3)
    targets = np.array([math.log(case.measured_ns) for case in measured])

    def predicted(values: np.ndarray) -> np.ndarray:
        return np.array([math.log(corrected_ns(case.stream, _factors(values))) for case in measured])

    for _ in range(_ROUNDS):
        base = predicted(logs)
        columns = [(predicted(logs + _STEP * unit) - base) / _STEP for unit in np.eye(3)]
        slope = np.stack(columns, axis=1)
        precision = np.diag([1 / prior**2 for prior in _PRIORS])
        normal = slope.T @ slope / _NOISE**2 + precision
        gradient = slope.T @ (targets - base) / _NOISE**2 - precision @ logs
        step = np.linalg.solve(normal, gradient)
        logs = np.clip(logs + np.clip(step, -1.0, 1.0), -_LIMIT, _LIMIT)
        if np.max(np.abs(step)) < 1e-4:
            break
    factors = msgspec.structs.replace(_factors(logs), measurements=len(measured))
    rows = [
        CorrectionRow(
            f"{case.stream.name}:b{case.stream.batch}",
            case.measured_ns,
            case.stream.latency_ns.point,
            corrected_ns(case.stream, factors),
        )
        for case in measured
    ]
    return factors, rows


def corrected_ns(stream: EstimatedStream, factors: Correction) -> float:
    """Return the latency of an uncorrected stream with these factors."""
    device = [
        kernel.device_ns * (factors.memory if kernel.memory_bound else factors.arithmetic) for kernel in stream.kernels
    ]
    return latency_of(device, [value * factors.host for value in stream.host_ns], stream.options)


def _factors(logs: np.ndarray) -> Correction:
    arithmetic, memory, host = (float(math.exp(value)) for value in logs)
    return Correction(arithmetic=arithmetic, memory=memory, host=host)


class _File(msgspec.Struct):
    version: int = 1
    gpus: dict[str, Correction] = msgspec.field(default_factory=dict)


def read_correction(path: Path, gpu: str) -> Correction | None:
    """Return the stored factors of a GPU; None if there are none."""
    return _read(path).gpus.get(gpu)


def write_correction(path: Path, gpu: str, factors: Correction | None) -> None:
    """Store the factors of a GPU, or remove them."""
    content = _read(path)
    if factors is None:
        content.gpus.pop(gpu, None)
    else:
        content.gpus[gpu] = factors
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".new")
        partial.write_bytes(msgspec.json.encode(content))
        partial.replace(path)
    except OSError as error:
        raise ConfigError("--state-dir", str(path.parent), f"cannot be written: {error.strerror}") from None


def _read(path: Path) -> _File:
    if not path.exists():
        return _File()
    try:
        return msgspec.json.decode(path.read_bytes(), type=_File)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError("corrections", str(path), f"cannot be read: {error}; remove the file") from None
