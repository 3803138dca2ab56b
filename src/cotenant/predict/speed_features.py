"""Features of pairs of a job and a GPU with online work, for many pairs at once.

Both sides are described by their use alone (`TaskUse`). The SMs that a side holds are a distribution over a grid of
widths; for a GPU that of all its online tenants, each present or not. Features of a pair are products of the two sides'
tables, so that a thousand jobs by a thousand GPUs take a few matrix products.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from cotenant.cluster.model.cluster import OnlineUse
from cotenant.predict.profile_usage import assumed_use
from cotenant.predict.usage import TaskUse
from cotenant.units.share import WHOLE_PPM

STEPS: Final = 20
"""Steps of the whole GPU in which widths are counted."""
_MAX_DEMAND: Final = 6
"""Largest demand of online tenants, in whole GPUs; more is counted as that."""
_WIDTHS: Final = np.arange(STEPS + 1, dtype=np.float64) / STEPS
ASKED: Final = np.arange(_MAX_DEMAND * STEPS + 1, dtype=np.float64) / STEPS
"""Grid of the demand of online tenants, in whole GPUs."""
_MIN_SHARE: Final = 0.01
_USUAL_KERNEL_NS: Final = 50_000.0
"""Kernel duration where it is unknown; that of an unknown job is ten times as long."""
_LONG_KERNEL_NS: Final = 10 * _USUAL_KERNEL_NS
_USUAL_KERNELS: Final = 50.0
"""Kernels of a request or step where its length is unknown."""
_TINY: Final = 1e-9
_TENANTS_CACHED: Final = 20_000
"""Online tenants of which features are cached."""


class Spot(NamedTuple):
    """A GPU, as far as a job's speed depends on it."""

    online: tuple[OnlineUse, ...]
    offer_ppm: int
    """Part of the SMs that the job would have."""


class JobSide(NamedTuple):
    """Features of jobs, a row each."""

    duty: Any
    memory: Any
    kernel_ns: Any
    round_ns: Any
    held: Any
    """Distribution of SMs held while a kernel runs: STEPS + 1 columns."""
    is_known: Any


class GpuSide(NamedTuple):
    """Features of GPUs, a row each."""

    share: Any
    tenants: Any
    presence: Any
    """Part of the time in which online kernels run."""
    asked: Any
    """Mean number of tenants with a running kernel."""
    held: Any
    """Distribution of SMs that online work requests at any instant, over ASKED."""
    memory: Any
    """Mean part of the bandwidth that online work requests."""
    kernel_ns: Any
    round_ns: Any
    duty: Any
    """Part of a request on the device, which is slowed with the device."""
    active: Any
    own: Any
    """Distribution of SMs held by an online kernel while one runs."""
    is_known: Any
    by_width: Any
    """For each width of a job's kernels the first four features of `PairFacts`: GPUs by four by STEPS + 1."""


def job_side(jobs: Sequence[TaskUse | None]) -> JobSide:
    """Return the features of jobs; unknown jobs are assumed to use the whole GPU all the time."""
    uses = [assumed_use(job) for job in jobs]
    known = np.array([job is not None for job in jobs], dtype=bool)
    lengths = np.array([use.kernel_ns for use in uses], dtype=np.float64)
    duty = np.array([use.duty for use in uses], dtype=np.float64)
    rounds = np.array([0 if job is None else job.round_ns for job in jobs], dtype=np.float64)
    lengths = np.where(lengths > 0, lengths, np.where(known, _USUAL_KERNEL_NS, _LONG_KERNEL_NS))
    return JobSide(
        duty,
        np.array([use.memory for use in uses], dtype=np.float64),
        lengths,
        np.where(rounds > 0, rounds, _USUAL_KERNELS * lengths / np.maximum(duty, _MIN_SHARE)),
        np.array([held_of(use.widths) for use in uses], dtype=np.float64).reshape(len(uses), STEPS + 1),
        known,
    )


def gpu_side(spots: Sequence[Spot]) -> GpuSide:
    """Return the features of GPUs from the use of their tenants alone; the model adds the slowdown between them."""
    rows = [_spot(spot) for spot in spots]
    columns = list(zip(*rows, strict=True)) if rows else [() for _ in GpuSide._fields[:-1]]
    arrays: list[Any] = [np.array(column, dtype=np.float64) for column in columns]
    index = {name: number for number, name in enumerate(GpuSide._fields)}
    for name, width in (("held", len(ASKED)), ("own", STEPS + 1)):
        arrays[index[name]] = arrays[index[name]].reshape(len(rows), width)
    share, held, own = (arrays[index[name]] for name in ("share", "held", "own"))
    return GpuSide._make([*arrays, _by_width(share, held, own)])


def _by_width(shares: Any, held: Any, own: Any) -> Any:
    table = np.empty((len(shares), 4, STEPS + 1))
    for share in np.unique(shares):
        rows = np.flatnonzero(shares == share)
        capped = np.minimum(_WIDTHS, share)[:, None]
        over = np.maximum(0.0, capped + ASKED[None, :] - 1)
        left = np.minimum(1.0, np.maximum(0.0, 1 - ASKED)[None, :] / np.maximum(capped, _MIN_SHARE))
        table[rows, 0] = np.maximum(1.0, _WIDTHS / share)[None, :]
        table[rows, 1] = held[rows] @ over.T
        table[rows, 2] = own[rows] @ over[:, : STEPS + 1].T
        table[rows, 3] = held[rows] @ left.T
    return table


class _Tenant(NamedTuple):
    presence: float
    duty: float
    active: float
    memory: float
    kernel_ns: float
    round_ns: float
    alone: Any
    """Distribution of SMs held by its kernels."""
    held: Any
    """The same at any instant, present or not."""


@functools.lru_cache(maxsize=_TENANTS_CACHED)
def _tenant(use: TaskUse) -> _Tenant:
    """Return the features of an online tenant; one of unknown use is assumed to use everything."""
    estimate = assumed_use(None if use == TaskUse() else use)
    presence = estimate.active * estimate.duty
    alone = np.array(held_of(estimate.widths))
    held = presence * alone
    held[0] += 1 - presence
    kernel_ns = estimate.kernel_ns or _USUAL_KERNEL_NS
    round_ns = float(use.round_ns or _USUAL_KERNELS * kernel_ns)
    return _Tenant(presence, estimate.duty, estimate.active, estimate.memory, kernel_ns, round_ns, alone, held)


def _spot(spot: Spot) -> tuple[Any, ...]:
    tenants = [_tenant(online.use) for online in spot.online]
    share = max(spot.offer_ppm / WHOLE_PPM, _MIN_SHARE)
    asked = sum(tenant.presence for tenant in tenants)
    weights = [tenant.presence / asked for tenant in tenants] if asked > _TINY else []
    held = np.ones(1)
    own = np.zeros(STEPS + 1)
    idle = idle_all = 1.0
    for tenant in tenants:
        held = np.convolve(held, tenant.held)
        idle *= 1 - tenant.presence
        idle_all *= 1 - tenant.active
    for tenant, part in zip(tenants, weights, strict=False):
        own += part * tenant.alone
    own[0] += max(1 - float(own.sum()), 0.0)

    def mean(values: Iterable[float], empty: float) -> float:
        return sum(map(operator.mul, weights, values)) if weights else empty

    return (
        share,
        len(tenants),
        1 - idle,
        asked,
        _on_demand_grid(held),
        min(1.0, sum(tenant.memory * tenant.presence for tenant in tenants)),
        mean((tenant.kernel_ns for tenant in tenants), _USUAL_KERNEL_NS),
        mean((tenant.round_ns for tenant in tenants), _USUAL_KERNELS * _USUAL_KERNEL_NS),
        mean((tenant.duty for tenant in tenants), 0.0),
        1 - idle_all,
        own,
        float(all(online.use != TaskUse() for online in spot.online)),
    )


def _on_demand_grid(held: Any) -> Any:
    """Return the distribution over ASKED; everything beyond its end is counted at its end."""
    distribution = np.zeros(len(ASKED))
    size = min(len(held), len(distribution))
    distribution[:size] = held[:size]
    distribution[-1] += held[size:].sum()
    return distribution


def held_of(widths: tuple[tuple[float, float], ...]) -> list[float]:
    """Return the distribution of widths on the grid, each split between its two nearest steps."""
    distribution = [0.0] * (STEPS + 1)
    total = sum(part for _, part in widths)
    if total <= 0:
        distribution[-1] = 1.0
        return distribution
    for width, part in widths:
        position = min(max(width, 0.0), 1.0) * STEPS
        step = min(int(position), STEPS - 1)
        distribution[step + 1] += (position - step) * part / total
        distribution[step] += (1 - (position - step)) * part / total
    return distribution


class PairFacts(NamedTuple):
    """Tables of pair features, jobs by GPUs."""

    stretched: Any
    """Relative duration of the job's kernels on its share alone."""
    crowded: Any
    """Mean excess demand for SMs while a kernel of the job runs."""
    crowding: Any
    """The same while an online kernel runs, with the job present for its duty."""
    left: Any
    """Rate of the job's kernels if online work goes first, relative to its share alone."""
    starved: Any
    """Excess demand for bandwidth while a kernel of the job runs."""


def pair_facts(jobs: JobSide, gpus: GpuSide) -> PairFacts:
    """Return the features of every job on every GPU as sums over the widths of the job's kernels."""
    stretched, crowded, crowding, left = (jobs.held @ gpus.by_width[:, index].T for index in range(4))
    presence = jobs.duty[:, None] * stretched
    presence /= 1 - jobs.duty[:, None] + presence
    starved = np.maximum(0.0, jobs.memory[:, None] * gpus.share[None, :] + gpus.memory[None, :] - 1)
    return PairFacts(stretched, crowded, presence * crowding, left, starved)
