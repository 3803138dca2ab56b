"""What do a job and the online work of a GPU have to do with each other? Numbers for every pair of many, at once.

Both sides are told by what they do alone (`TaskUse`). What a side holds of the SMs is a distribution over the grid of
widths; for a GPU that of all its online tenants together, each there or not. A pair's numbers are products of the two
sides' tables, so that a thousand jobs beside a thousand GPUs are a few multiplications of matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from cotenant.domain.cluster import OnlineUse
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.use import TaskUse
from cotenant.policy.predict.slowdown import Use
from cotenant.policy.predict.use import assumed

STEPS: Final = 20
"""Steps of the whole GPU in which widths are counted."""
_MOST: Final = 6
"""Online tenants together may ask for so many wholes; more is counted as that."""
_WIDTHS: Final = np.arange(STEPS + 1, dtype=np.float64) / STEPS
ASKED: Final = np.arange(_MOST * STEPS + 1, dtype=np.float64) / STEPS
_LEAST_SHARE: Final = 0.01
_USUAL_KERNEL_NS: Final = 50_000.0
"""Where the length of kernels is not known; an unknown job's are ten times as long."""
_LONG_KERNEL_NS: Final = 10 * _USUAL_KERNEL_NS
_USUAL_KERNELS: Final = 50.0
"""Of a request or a step, where its length is not known."""
_TINY: Final = 1e-9


class Spot(NamedTuple):
    """A GPU as far as a job's speed there depends on it."""

    online: tuple[OnlineUse, ...]
    offer_ppm: int
    """The part of the SMs that the job would have."""


class JobSide(NamedTuple):
    """Of so many jobs, a row each."""

    duty: Any
    memory: Any
    kernel_ns: Any
    round_ns: Any
    held: Any
    """The distribution of SMs held while a kernel runs: a row of STEPS + 1 each."""
    is_known: Any


class GpuSide(NamedTuple):
    """Of so many GPUs, a row each."""

    share: Any
    tenants: Any
    presence: Any
    """Part of the time in which online kernels run."""
    asked: Any
    """How many tenants have a kernel there, in the mean."""
    held: Any
    """The distribution of SMs that online work asks for at any instant: a row over ASKED each."""
    memory: Any
    """Part of the bandwidth that online work asks for, in the mean."""
    kernel_ns: Any
    round_ns: Any
    duty: Any
    """Of a request, part on the device: what is felt of a slower device."""
    active: Any
    own: Any
    """The distribution of SMs held by an online kernel, while one runs."""
    is_known: Any


def job_side(jobs: Sequence[TaskUse | None]) -> JobSide:
    """Unknown jobs are taken to use all of the GPU all of the time."""
    uses = [assumed(one) for one in jobs]
    known = np.array([one is not None for one in jobs], dtype=bool)
    lengths = np.array([one.kernel_ns for one in uses], dtype=np.float64)
    duty = np.array([one.duty for one in uses], dtype=np.float64)
    rounds = np.array([0 if one is None else one.round_ns for one in jobs], dtype=np.float64)
    lengths = np.where(lengths > 0, lengths, np.where(known, _USUAL_KERNEL_NS, _LONG_KERNEL_NS))
    return JobSide(
        duty,
        np.array([one.memory for one in uses], dtype=np.float64),
        lengths,
        np.where(rounds > 0, rounds, _USUAL_KERNELS * lengths / np.maximum(duty, _LEAST_SHARE)),
        np.array([held_of(one.widths) for one in uses], dtype=np.float64).reshape(len(uses), STEPS + 1),
        known,
    )


def gpu_side(spots: Sequence[Spot]) -> GpuSide:
    """Each by what its online tenants do alone; that they slow each other is for the model to know."""
    rows = [_spot(spot) for spot in spots]
    columns = list(zip(*rows, strict=True)) if rows else [[] for _ in GpuSide._fields]
    return GpuSide(*(np.array(column, dtype=np.float64) for column in columns))


def _spot(spot: Spot) -> tuple[Any, ...]:
    uses = [_online(one.use) for one in spot.online]
    share = max(spot.offer_ppm / WHOLE_PPM, _LEAST_SHARE)
    there = np.array([one.active * one.duty for one in uses], dtype=np.float64)
    weight = there / max(float(there.sum()), _TINY)
    held = np.ones(1)
    own = np.zeros(STEPS + 1)
    for use, part, mine in zip(uses, weight, there, strict=True):
        alone = np.array(held_of(use.widths))
        own += part * alone
        some = mine * alone
        some[0] += 1 - mine
        held = np.convolve(held, some)
    held = _within(held)
    own[0] += max(1 - float(own.sum()), 0.0)

    def mean(values: list[float], empty: float) -> float:
        return float(np.dot(weight, values)) if uses and there.sum() > _TINY else empty

    return (
        share,
        len(uses),
        1 - float(np.prod(1 - there)),
        float(there.sum()),
        held,
        min(1.0, sum(one.memory * part for one, part in zip(uses, there, strict=True))),
        mean([one.kernel_ns or _USUAL_KERNEL_NS for one in uses], _USUAL_KERNEL_NS),
        mean([_round_ns(one.use) for one in spot.online], _USUAL_KERNELS * _USUAL_KERNEL_NS),
        mean([one.duty for one in uses], 0.0),
        1 - float(np.prod([1 - one.active for one in uses])),
        own,
        float(all(one.use != TaskUse() for one in spot.online)),
    )


def _online(use: TaskUse) -> Use:
    """Of an online tenant that says nothing of itself, everything is taken."""
    return assumed(None if use == TaskUse() else use)


def _round_ns(use: TaskUse) -> float:
    return float(use.round_ns or _USUAL_KERNELS * (use.kernel_ns or _USUAL_KERNEL_NS))


def _within(held: Any) -> Any:
    """Over ASKED; all beyond its end at its end."""
    found = np.zeros(len(ASKED))
    size = min(len(held), len(found))
    found[:size] = held[:size]
    found[-1] += held[size:].sum()
    return found


def held_of(widths: tuple[tuple[float, float], ...]) -> list[float]:
    """The distribution of widths on the grid, each between its two nearest steps."""
    found = [0.0] * (STEPS + 1)
    whole = sum(part for _, part in widths)
    if whole <= 0:
        found[-1] = 1.0
        return found
    for width, part in widths:
        place = min(max(width, 0.0), 1.0) * STEPS
        below = min(int(place), STEPS - 1)
        found[below + 1] += (place - below) * part / whole
        found[below] += (1 - (place - below)) * part / whole
    return found


class PairFacts(NamedTuple):
    """A table each, jobs by GPUs."""

    stretched: Any
    """How many times as long the job's kernels take on its share alone."""
    crowded: Any
    """What is asked for beyond the whole while a kernel of the job runs, in the mean."""
    crowding: Any
    """The same while an online kernel runs, the job being there for its duty."""
    left: Any
    """Of the rate at which the job's kernels run on its share alone, what is left if online work goes first."""
    starved: Any
    """Bandwidth asked for beyond the whole while a kernel of the job runs."""


def pair_facts(jobs: JobSide, gpus: GpuSide) -> PairFacts:
    """For every job on every GPU."""
    share = gpus.share[:, None]
    stretch = np.maximum(1.0, _WIDTHS[None, :] / share)
    stretched = jobs.held @ stretch.T
    capped = np.minimum(_WIDTHS[None, :], share)
    over = np.maximum(0.0, capped[:, :, None] + ASKED[None, None, :] - 1)
    crowded = jobs.held @ np.einsum("gax,gx->ag", over, gpus.held)
    over = over[:, :, : STEPS + 1]
    free = np.maximum(0.0, 1 - ASKED)[None, None, :] / np.maximum(capped, _LEAST_SHARE)[:, :, None]
    left = jobs.held @ np.einsum("gax,gx->ag", np.minimum(1.0, free), gpus.held)
    there = jobs.duty[:, None] * stretched
    there = there / (1 - jobs.duty[:, None] + there)
    crowding = there * (jobs.held @ np.einsum("gax,gx->ag", over, gpus.own))
    starved = np.maximum(0.0, jobs.memory[:, None] * np.minimum(1.0, gpus.share)[None, :] + gpus.memory[None, :] - 1)
    return PairFacts(stretched, crowded, crowding, left, starved)
