"""Trainings on MIG slices (MISO) and in pairs by time slices (Gavel), against the device model.

MISO: a training step is the request of *latency by share*, fitted to its durations on 1, 3 and 7 slices of seven; those
on 2 and 4 are held out.

Gavel: a step alternates between its host and its kernels a number of times, and the host waits for the kernels each
time. That number, and by how much hosts slow each other, are one pair of values for all trainings, fitted to pairs of
which both families are in the fit half. A training is judged if its family is in the other half. How much of a step is
on the GPU follows from the training's speeds alone on three GPUs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from cotenant.softgpu.costs import hardware
from cotenant.softgpu.sim.device import Device, DeviceConfig, Kernel, Limits, ScriptClient, Step, preset
from cotenant_lab.data.gavel import TrainingPairs
from cotenant_lab.data.miso import Miso
from cotenant_lab.physics import share
from cotenant_lab.study.error import HalfErrors, half_errors
from cotenant_lab.study.predictor.measured import fit_half
from cotenant_lab.study.predictor.training import TrainingGroup, training_groups

CHECK: Final = "trainings"
SLICES: Final = 7
KNOWN_SLICES: Final = (1, 3, 7)
_LEAN: Final = 0.5
_GPU: Final = "v100"
"""The only GPU of Gavel's that the device model has."""
TURNS: Final = (1, 2, 4, 8, 16, 32)
HOSTS: Final = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
_STEPS: Final = 6
_STEPS_MOST: Final = 400
_LIMITS: Final = Limits(clients=2, contexts=2, streams=2, events=1, ops=4096, records=64)
_Case = tuple[float, float]
"""Predicted and measured."""


class TimeSliceFit(NamedTuple):
    """The values fitted to Gavel's pairs."""

    turns: int
    """How often a step waits for its kernels."""
    host: float
    """Part by which a host takes longer while the other one works."""


class TimeSlicePairs(msgspec.Struct, frozen=True, kw_only=True):
    """Slowdowns of trainings next to another one by time slices: errors, and the fitted values."""

    errors: HalfErrors
    turns: int
    host: float
    constant_median: float
    """Median error on the held half of the median slowdown of the fit half."""


def evaluate_slices(miso: Miso) -> HalfErrors:
    """Predict the durations of steps on slices that were not fitted."""
    return half_errors(*_miso(miso))


def evaluate_pairs(pairs: TrainingPairs) -> TimeSlicePairs:
    """Fit both values to the pairs of the fit half, and judge the others."""
    fit, held, fitted, constant = _gavel(pairs)
    return TimeSlicePairs(
        errors=half_errors(held, fitted), turns=fit.turns, host=fit.host, constant_median=round(constant, 6)
    )


def _miso(miso: Miso) -> tuple[list[_Case], list[_Case]]:
    """Return the cases of the held and of the fitted slices."""
    config = preset("a100")
    held: list[_Case] = []
    fitted: list[_Case] = []
    for steps in miso.step_s.values():
        known = {count: steps[count] for count in KNOWN_SLICES if count in steps}
        if len(known) < len(KNOWN_SLICES):
            continue
        request, _ = share.fit_request({_sms(count, config): step_s * 1e9 for count, step_s in known.items()}, _LEAN)
        for count, step_s in steps.items():
            predicted = share.latency_ns(request, config, _sms(count, config)) / 1e9
            (fitted if count in known else held).append((predicted, step_s))
    return held, fitted


def _sms(slices: int, config: DeviceConfig) -> int:
    return max(config.sm_count * slices // SLICES, 1)


def _gavel(pairs: TrainingPairs) -> tuple[TimeSliceFit, list[_Case], list[_Case], float]:
    groups = [group for group in training_groups(pairs) if group.gpu == _GPU]
    half = fit_half([program for group in groups for program in group.programs])
    known = [group for group in groups if all(program in half for program in group.programs)]
    config = hardware(_GPU)
    grid = [TimeSliceFit(turns, host) for turns, host in itertools.product(TURNS, HOSTS)]
    fit = min(grid, key=lambda values: (_squares(known, values, config), values))
    measured = sorted(slowdown for group in known for slowdown in group.slowdowns)
    usual = measured[len(measured) // 2]
    held: list[_Case] = []
    fitted: list[_Case] = []
    for group in groups:
        predicted = slowdowns(group, fit, config)
        for program, value, slowdown in zip(group.programs, predicted, group.slowdowns, strict=True):
            if group in known:
                fitted.append((value, slowdown))
            elif program not in half:
                held.append((value, slowdown))
    errors = sorted(abs(usual / slowdown - 1) for _, slowdown in held)
    return fit, held, fitted, errors[len(errors) // 2]


def _squares(groups: Sequence[TrainingGroup], values: TimeSliceFit, config: DeviceConfig) -> float:
    return sum(
        math.log(predicted / measured) ** 2
        for group in groups
        for predicted, measured in zip(slowdowns(group, values, config), group.slowdowns, strict=True)
    )


def slowdowns(group: TrainingGroup, values: TimeSliceFit, config: DeviceConfig) -> tuple[float, ...]:
    """Return the duration of a step of each training next to the other over that alone, by the device model."""
    longest_ns = max(group.step_ns)
    kernels: list[Kernel] = []
    clients = []
    for index, (duty, step_ns) in enumerate(zip(group.duties, group.step_ns, strict=True)):
        other = 1 - group.duties[1 - index]  # the part of the time in which the other one's host works
        host_ns = (1 - duty) * step_ns * (1 + values.host * other) / values.turns
        kernels.append(
            Kernel(blocks=config.sm_count, block_ns=max(round(duty * step_ns / values.turns), 1), blocks_per_sm=1)
        )
        turn = (Step(round(host_ns), index), Step(0, None, sync=True))
        repeats = min(math.ceil(_STEPS * longest_ns / step_ns) + 1, _STEPS_MOST)
        clients.append(ScriptClient(steps=turn * values.turns, repeats=repeats))
    results = Device(config, _LIMITS).run(kernels, clients)
    end_ns = min(result.repeat_ends_ns[-1] for result in results)
    found = []
    for result, step_ns in zip(results, group.step_ns, strict=True):
        ends = [instant for instant in result.repeat_ends_ns if instant <= end_ns]
        mean_ns = (ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 1 else float(result.repeat_ends_ns[0])
        found.append(max(mean_ns / step_ns, 1.0))
    return tuple(found)
