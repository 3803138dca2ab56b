"""Kinds of GPUs and jobs: 20,000 of each become a table of some hundred rows and columns.

A prediction depends only on the two kinds, so it is computed once per pair of kinds. Loads and offers are rounded to
steps; memory is exact in a small cluster and rounded in a large one. Rounding is conservative: each GPU has at least
what its kind states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from cotenant.cluster.model.cluster import GpuReport, JobSpec
from cotenant.predict.usage import TaskUse
from cotenant.units.share import WHOLE_PPM

_LOAD_STEPS: Final = 16
_OFFER_STEPS: Final = 32
_MEMORY_STEPS: Final = 64
_COARSE: Final = 8

UseKey: TypeAlias = tuple[int, tuple[tuple[int, int], ...], int, int, int, int, int, int]


class GpuKind(NamedTuple):
    """Properties that GPUs of one kind share."""

    type: str
    offer_ppm: int
    free_bytes: int
    online: tuple[UseKey, ...]
    named: tuple[str, ...]
    """Online tenants with which some job must not share a GPU."""
    pools: tuple[str, ...] = ()
    """Pools to which its node belongs."""
    jobs: int = 0
    """Offline jobs that it has already."""


class JobKind(NamedTuple):
    """Properties that jobs of one kind share."""

    use: TaskUse | None
    profile: str
    memory_bytes: int
    gpus: int
    types: tuple[str, ...]
    min_share_ppm: int
    avoid: tuple[str, ...]
    group: str
    pool: str = ""


def gpu_kind(
    report: GpuReport, avoided: Mapping[str, int], *, exact: bool, pools: tuple[str, ...] = (), jobs: int = 0
) -> GpuKind:
    """Return the kind of a GPU whose node belongs to these pools, and which has this many offline jobs already."""
    online = report.online
    uses: tuple[UseKey, ...] = ()
    named: tuple[str, ...] = ()
    if online:
        uses = (_key(online[0].use),) if len(online) == 1 else tuple(sorted(_key(tenant.use) for tenant in online))
        if avoided:
            named = tuple(sorted({tenant.name for tenant in online if tenant.name in avoided}))
    free_bytes = report.free_bytes
    if not exact:
        step = report.memory_bytes // _MEMORY_STEPS or 1
        free_bytes -= free_bytes % step
    step = WHOLE_PPM // _OFFER_STEPS
    return GpuKind(report.type, report.offer_ppm // step * step, free_bytes, uses, named, pools, jobs)


def job_kind(spec: JobSpec, *, was_tried: bool) -> JobKind:
    """Return the kind of a job. A job without a profile that never ran has no learned corrections."""
    profile = spec.profile or (spec.name if was_tried else "")
    return JobKind(
        spec.use,
        profile,
        spec.memory_bytes,
        spec.gpus,
        spec.types,
        spec.min_share_ppm,
        spec.avoid,
        spec.group,
        spec.pool,
    )


def co_runner_key(online: tuple[UseKey, ...]) -> str:
    """Return the key under which corrections for co-running online work are learned: what it does, not how often."""
    return "+".join(
        f"{use[0] * _COARSE // WHOLE_PPM}.{use[2] * _COARSE // WHOLE_PPM}.{use[3].bit_length()}" for use in online
    )


def _key(use: TaskUse) -> UseKey:
    """Return a use with its load rounded up, also of an idle tenant, so that co-running jobs are not overestimated.

    (In other places a load of 0 in a `TaskUse` means that it is unknown.)
    """
    step = WHOLE_PPM // _LOAD_STEPS
    return (
        use.duty_ppm,
        use.widths,
        use.memory_ppm,
        use.kernel_ns,
        use.longest_ns,
        use.round_ns,
        use.round_device_ns,
        max(step, -(-use.active_ppm // step) * step),
    )
