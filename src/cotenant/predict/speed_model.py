"""Evaluation of fitted speed models on arrays of pair features.

A model is fitted to the error of a simple rule, in logarithms of the job's speed and of the online work's slowdown, so
an empty model predicts by the rule. `cotenant-lab study predictor` fits models; this module evaluates them.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from cotenant.predict.speed_features import ASKED, STEPS, GpuSide, JobSide, PairFacts
from cotenant.units.value import Value

FEATURES: Final = (
    "job_duty",
    "job_width",
    "job_width_spread",
    "job_memory",
    "job_kernel",
    "job_round",
    "job_gap",
    "job_burst",
    "share",
    "tenants",
    "presence",
    "asked",
    "held",
    "held_spread",
    "online_memory",
    "online_kernel",
    "online_round",
    "online_gap",
    "online_burst",
    "online_duty",
    "active",
    "online_width",
    "stretched",
    "crowded",
    "crowding",
    "left",
    "starved",
    "kernel_ratio",
    "job_on_device",
    "turn_speed",
    "turn_slowdown",
    "rule_speed",
    "rule_slowdown",
)
_WIDTHS: Final = np.arange(STEPS + 1, dtype=np.float64) / STEPS
_USUAL_NS: Final = 1e5
_TINY_NS: Final = 100.0
_MIN_RATE: Final = 0.01
_BLOCK: Final = 8192
"""Rows that are computed at a time, to stay in the processor cache."""
_MAX_TURN: Final = 100.0
"""Largest ratio of kernel durations that counts where kernels take turns."""
_MAX_CORRECTION: Final = 4.0
"""Largest difference of a prediction from the rule, in logarithms."""
_WHOLE_EXCESS: Final = 1 / STEPS
"""Excess demand from which on the correction applies in full: one step of the grid on which demand is counted."""
_DEMAND: Final = tuple(FEATURES.index(name) for name in ("crowded", "crowding", "starved"))


class SharingLaw(Value, frozen=True):
    """Parameters of the rule for one sharing mode."""

    sliced: bool = False
    """Whether tenants alternate by time slice, rather than run at the same time."""
    turn: float = 0.0
    """0: tenants share by time; 1: kernels take turns, so that short ones wait for the long ones of others."""
    interference: float = 0.0
    """Slowdown of a kernel next to a kernel on other SMs, through caches and memory."""
    interference_memory: float = 0.0
    """The same in addition if the other kernel is memory-bound."""
    trust: float = 1.0
    """Part of the fitted model's correction of the rule that is applied where demand exceeds the GPU."""


class Rule(NamedTuple):
    """Predictions of the simple rule, jobs by GPUs: logarithms of speed (at most 0) and of slowdown (at least 0)."""

    speed: Any
    slowdown: Any


def rule(jobs: JobSide, gpus: GpuSide, facts: PairFacts, law: SharingLaw) -> Rule:
    """Predict by excess demand for SMs and bandwidth; with time slices, by the presence of other tenants."""
    duty = jobs.duty[:, None]
    if law.sliced:
        kernels = 1 + np.broadcast_to(gpus.asked[None, :], facts.crowded.shape)
        slowed = gpus.duty[None, :] * np.broadcast_to(duty, facts.crowded.shape)
    else:
        waits = 1.0
        if law.turn:
            ratio = gpus.kernel_ns[None, :] / np.maximum(jobs.kernel_ns[:, None], 1.0)
            waits = np.clip(ratio, 1 / _MAX_TURN, _MAX_TURN) ** law.turn
        kernels = facts.stretched * (1 + facts.crowded * waits + facts.starved)
        slowed = gpus.duty[None, :] * (facts.crowding / waits + facts.starved)
    slowed = np.where(gpus.presence[None, :] > 0, slowed, 0.0)
    return Rule(-np.log(1 - duty + duty * kernels), np.log1p(slowed))


def interference(jobs: JobSide, gpus: GpuSide, facts: PairFacts, law: SharingLaw) -> Rule:
    """Return the logarithms by which jobs and online work slow each other through caches and memory."""
    duty = jobs.duty[:, None]
    of_online = law.interference * gpus.presence + law.interference_memory * gpus.memory
    presence = duty * facts.stretched
    presence = presence / (1 - duty + presence)
    of_job = presence * (law.interference + law.interference_memory * jobs.memory[:, None])
    is_shared = gpus.presence[None, :] > 0
    return Rule(-np.log1p(duty * of_online[None, :]), np.where(is_shared, np.log1p(gpus.duty[None, :] * of_job), 0.0))


def features(jobs: JobSide, gpus: GpuSide, facts: PairFacts, base: Rule) -> Any:
    """Return a table of float32, jobs by GPUs, for each of FEATURES."""
    shape = facts.crowded.shape
    width, spread = _moments(jobs.held, _WIDTHS)
    online_held, online_spread = _moments(gpus.held, ASKED)
    own_width, _ = _moments(gpus.own, _WIDTHS)
    of_job = (
        jobs.duty,
        width,
        spread,
        jobs.memory,
        _log(jobs.kernel_ns),
        _log(jobs.round_ns),
        _log((1 / np.maximum(jobs.duty, 0.01) - 1) * jobs.kernel_ns + _TINY_NS),
        _log(jobs.duty * jobs.round_ns),
    )
    of_gpu = (
        gpus.share,
        np.log1p(gpus.tenants),
        gpus.presence,
        np.log1p(gpus.asked),
        online_held,
        online_spread,
        gpus.memory,
        _log(gpus.kernel_ns),
        _log(gpus.round_ns),
        _log((1 / np.maximum(gpus.duty, 0.01) - 1) * gpus.kernel_ns + _TINY_NS),
        _log(gpus.duty * gpus.round_ns),
        gpus.duty,
        gpus.active,
        own_width,
    )
    presence = jobs.duty[:, None] * facts.stretched
    busy = jobs.duty[:, None] * gpus.asked[None, :]
    ratio = jobs.kernel_ns[:, None] / np.maximum(gpus.kernel_ns[None, :], 1.0)  # where kernels take turns
    of_both = (
        np.log(facts.stretched),
        facts.crowded,
        facts.crowding,
        np.log(np.maximum(facts.left, _MIN_RATE)),
        facts.starved,
        _log(jobs.kernel_ns)[:, None] - _log(gpus.kernel_ns)[None, :],
        presence / (1 - jobs.duty[:, None] + presence),
        np.log(np.maximum(1 / (1 + busy / ratio), 1 - busy)),
        np.log1p(gpus.duty[None, :] * jobs.duty[:, None] * ratio),
        base.speed,
        base.slowdown,
    )
    table = np.empty((len(FEATURES), *shape), dtype=np.float32)
    wide = (*(column[:, None] for column in of_job), *(column[None, :] for column in of_gpu), *of_both)
    for index, column in enumerate(wide):
        table[index] = column
    return table


class Scale(Value, frozen=True):
    """Offset and divisor of each feature."""

    middle: tuple[float, ...]
    spread: tuple[float, ...]

    def applied(self, rows: Any) -> Any:
        """Return scaled rows, clipped at four standard deviations, beyond which there was no training data."""
        scaled = rows - np.array(self.middle, dtype=np.float32)
        scaled /= np.array(self.spread, dtype=np.float32)
        return np.clip(scaled, -4, 4, out=scaled)


class Linear(Value, frozen=True, tag="linear"):
    """A weighted sum of the features and their squares."""

    scale: Scale
    weights: tuple[tuple[float, float], ...]
    """The last is the constant term."""

    def errors(self, rows: Any) -> Any:
        """Return the log errors of speed and slowdown to add to the rule."""
        return with_squares(self.scale.applied(rows)) @ np.array(self.weights, dtype=np.float32)


class Trees(Value, frozen=True, tag="trees"):
    """Gradient-boosted oblivious trees, for speed and for slowdown."""

    asks: tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]
    """Feature of each level of each tree."""
    above: tuple[tuple[tuple[float, ...], ...], tuple[tuple[float, ...], ...]]
    """Threshold of each level of each tree."""
    leaves: tuple[tuple[tuple[float, ...], ...], tuple[tuple[float, ...], ...]]

    def errors(self, rows: Any) -> Any:
        """Return the log errors of speed and slowdown to add to the rule."""
        errors = np.zeros((len(rows), 2), dtype=np.float32)
        trees = [
            (output, asks, above, np.array(leaves, dtype=np.float32))
            for output in range(2)
            for asks, above, leaves in zip(self.asks[output], self.above[output], self.leaves[output], strict=True)
        ]
        for first in range(0, len(rows), _BLOCK):
            columns = rows.T[:, first : first + _BLOCK]
            sums = np.zeros((2, columns.shape[1]), dtype=np.float32)
            for output, asks, above, leaves in trees:
                leaf = np.zeros(columns.shape[1], dtype=np.uint8)
                for level, (feature, border) in enumerate(zip(asks, above, strict=True)):
                    leaf |= (columns[feature] > np.float32(border)).view(np.uint8) << level
                sums[output] += leaves[leaf]
            errors[first : first + _BLOCK] = sums.T
        return errors


Layers = tuple[tuple[tuple[tuple[float, ...], ...], tuple[float, ...]], ...]
"""Weights (a row for each input) and biases of each layer."""


class Neural(Value, frozen=True, tag="neural"):
    """The mean of a few small networks with rectified linear units."""

    scale: Scale
    networks: tuple[Layers, ...]

    def errors(self, rows: Any) -> Any:
        """Return the log errors of speed and slowdown to add to the rule."""
        signal = self.scale.applied(rows).T[None]
        for index in range(len(self.networks[0])):
            if index:
                np.maximum(signal, 0, out=signal)
            weights = np.array([layers[index][0] for layers in self.networks], dtype=np.float32)
            added = np.array([layers[index][1] for layers in self.networks], dtype=np.float32)
            signal = np.matmul(weights.transpose(0, 2, 1), signal)
            signal += added[:, :, None]
        return signal.mean(axis=0).T


Model = Linear | Trees | Neural


def answers(model: Model, rows: Any, law: SharingLaw) -> Any:
    """Return logarithms of speed (at most 0) and slowdown (at least 0): a row of two for each row of features.

    Tenants that run at the same time and demand no more SMs and bandwidth than there are do not wait for each other:
    the rule holds there, and the correction, which is fitted to tenants that do, has no effect.
    """
    logs = rows[:, -2:]
    if law.trust:
        corrections = law.trust * np.clip(model.errors(rows), -_MAX_CORRECTION, _MAX_CORRECTION)
        if not law.sliced:
            corrections = corrections * np.minimum(1.0, excess_demand(rows) / _WHOLE_EXCESS)[:, None]
        logs = logs + corrections
    return np.stack([np.minimum(logs[:, 0], 0.0), np.maximum(logs[:, 1], 0.0)], axis=1)


def excess_demand(rows: Any) -> Any:
    """Return the demand for SMs and bandwidth above the total while either side runs, for each row of features."""
    return sum(rows[:, column] for column in _DEMAND)


def with_squares(rows: Any) -> Any:
    """Return the rows, their squares, and a one."""
    return np.concatenate([rows, rows * rows, np.ones((len(rows), 1), dtype=rows.dtype)], axis=1)


def _moments(held: Any, widths: Any) -> tuple[Any, Any]:
    mean = held @ widths
    return mean, np.sqrt(np.maximum(held @ (widths * widths) - mean * mean, 0.0))


def _log(length_ns: Any) -> Any:
    return np.log10(np.maximum(length_ns, _TINY_NS) / _USUAL_NS)
