"""What do a job and the online work of a GPU have to do with each other? Numbers for every pair of many, at once.

Both sides are told by what they do alone (`TaskUse`). What a side holds of the SMs is a distribution over the grid of
widths; for a GPU that of all its online tenants together, each there or not. A pair's numbers are products of the two
sides' tables, so that a thousand jobs beside a thousand GPUs are a few multiplications of matrices.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from cotenant.domain.cluster import OnlineUse
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.use import TaskUse
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
_TENANTS_KEPT: Final = 20_000
"""Online tenants of which the numbers are kept, since most are asked for again."""


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
    by_width: Any
    """For each width of a job's kernels, the numbers of `PairFacts` but the last: GPUs by four by STEPS + 1."""


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
    columns = list(zip(*rows, strict=True)) if rows else [() for _ in GpuSide._fields[:-1]]
    found: list[Any] = [np.array(column, dtype=np.float64) for column in columns]
    place = {name: number for number, name in enumerate(GpuSide._fields)}
    for name, width in (("held", len(ASKED)), ("own", STEPS + 1)):
        found[place[name]] = found[place[name]].reshape(len(rows), width)
    share, held, own = (found[place[name]] for name in ("share", "held", "own"))
    return GpuSide._make([*found, _by_width(share, held, own)])


def _by_width(shares: Any, held: Any, own: Any) -> Any:
    found = np.empty((len(shares), 4, STEPS + 1))
    for share in np.unique(shares):
        here = np.flatnonzero(shares == share)
        capped = np.minimum(_WIDTHS, share)[:, None]
        over = np.maximum(0.0, capped + ASKED[None, :] - 1)
        left = np.minimum(1.0, np.maximum(0.0, 1 - ASKED)[None, :] / np.maximum(capped, _LEAST_SHARE))
        found[here, 0] = np.maximum(1.0, _WIDTHS / share)[None, :]
        found[here, 1] = held[here] @ over.T
        found[here, 2] = own[here] @ over[:, : STEPS + 1].T
        found[here, 3] = held[here] @ left.T
    return found


class _Tenant(NamedTuple):
    there: float
    duty: float
    active: float
    memory: float
    kernel_ns: float
    round_ns: float
    alone: Any
    """The distribution of SMs held by its kernels."""
    held: Any
    """The same at any instant, there or not."""


@functools.lru_cache(maxsize=_TENANTS_KEPT)
def _tenant(use: TaskUse) -> _Tenant:
    """Of an online tenant that says nothing of itself, everything is taken."""
    told = assumed(None if use == TaskUse() else use)
    there = told.active * told.duty
    alone = np.array(held_of(told.widths))
    held = there * alone
    held[0] += 1 - there
    kernel_ns = told.kernel_ns or _USUAL_KERNEL_NS
    round_ns = float(use.round_ns or _USUAL_KERNELS * kernel_ns)
    return _Tenant(there, told.duty, told.active, told.memory, kernel_ns, round_ns, alone, held)


def _spot(spot: Spot) -> tuple[Any, ...]:
    tenants = [_tenant(one.use) for one in spot.online]
    share = max(spot.offer_ppm / WHOLE_PPM, _LEAST_SHARE)
    asked = sum(one.there for one in tenants)
    weights = [one.there / asked for one in tenants] if asked > _TINY else []
    held = np.ones(1)
    own = np.zeros(STEPS + 1)
    idle = gone = 1.0
    for one in tenants:
        held = np.convolve(held, one.held)
        idle *= 1 - one.there
        gone *= 1 - one.active
    for one, part in zip(tenants, weights, strict=False):
        own += part * one.alone
    own[0] += max(1 - float(own.sum()), 0.0)

    def mean(values: Iterable[float], empty: float) -> float:
        return sum(map(operator.mul, weights, values)) if weights else empty

    return (
        share,
        len(tenants),
        1 - idle,
        asked,
        _within(held),
        min(1.0, sum(one.memory * one.there for one in tenants)),
        mean((one.kernel_ns for one in tenants), _USUAL_KERNEL_NS),
        mean((one.round_ns for one in tenants), _USUAL_KERNELS * _USUAL_KERNEL_NS),
        mean((one.duty for one in tenants), 0.0),
        1 - gone,
        own,
        float(all(one.use != TaskUse() for one in spot.online)),
    )


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
    """For every job on every GPU: by the width of the job's kernels everything is a sum."""
    stretched, crowded, crowding, left = (jobs.held @ gpus.by_width[:, place].T for place in range(4))
    there = jobs.duty[:, None] * stretched
    there /= 1 - jobs.duty[:, None] + there
    starved = np.maximum(0.0, jobs.memory[:, None] * gpus.share[None, :] + gpus.memory[None, :] - 1)
    return PairFacts(stretched, crowded, there * crowding, left, starved)
