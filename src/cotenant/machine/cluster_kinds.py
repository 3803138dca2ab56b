"""Which GPUs are alike, and which jobs? Twenty thousand of each are a table of some hundred rows and columns.

A kind is a value: what is foretold depends on it alone, so that it is foretold once. Loads and offers are told apart in
steps, memory exactly in a small cluster and in parts of the GPU's in a large one; always rounded so that what a kind
promises, each of its GPUs has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from cotenant.domain.cluster import GpuReport, JobSpec
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.use import TaskUse

_LOAD_STEPS: Final = 16
_OFFER_STEPS: Final = 32
_MEMORY_STEPS: Final = 64
_COARSE: Final = 8

UseKey: TypeAlias = tuple[int, tuple[tuple[int, int], ...], int, int, int, int, int, int]


class GpuKind(NamedTuple):
    """What GPUs that are alike have in common."""

    type: str
    offer_ppm: int
    free_bytes: int
    online: tuple[UseKey, ...]
    named: tuple[str, ...]
    """Online tenants that some job must not share a GPU with."""


class JobKind(NamedTuple):
    """What jobs that are alike have in common."""

    use: TaskUse | None
    profile: str
    memory_bytes: int
    gpus: int
    types: tuple[str, ...]
    least_ppm: int
    avoid: tuple[str, ...]
    group: str


def gpu_kind(report: GpuReport, avoided: Mapping[str, int], *, exact: bool) -> GpuKind:
    """What this GPU counts as."""
    online = report.online
    uses: tuple[UseKey, ...] = ()
    named: tuple[str, ...] = ()
    if online:
        uses = (_key(online[0].use),) if len(online) == 1 else tuple(sorted(_key(one.use) for one in online))
        if avoided:
            named = tuple(sorted({one.name for one in online if one.name in avoided}))
    free_bytes = report.free_bytes
    if not exact:
        step = report.memory_bytes // _MEMORY_STEPS or 1
        free_bytes -= free_bytes % step
    step = WHOLE_PPM // _OFFER_STEPS
    return GpuKind(report.type, report.offer_ppm // step * step, free_bytes, uses, named)


def job_kind(spec: JobSpec, *, was_tried: bool) -> JobKind:
    """What this job counts as; of one without a profile, that never ran, nothing can have been learned."""
    profile = spec.profile or (spec.name if was_tried else "")
    return JobKind(spec.use, profile, spec.memory_bytes, spec.gpus, spec.types, spec.least_ppm, spec.avoid, spec.group)


def beside_of(online: tuple[UseKey, ...]) -> str:
    """The company as coarsely as what was learned beside it holds for others: what it does, not how often."""
    return "+".join(
        f"{use[0] * _COARSE // WHOLE_PPM}.{use[2] * _COARSE // WHOLE_PPM}.{use[3].bit_length()}" for use in online
    )


def _key(use: TaskUse) -> UseKey:
    """A load is rounded up, an idle tenant's too: what is beside it is then not promised too much.

    (Of a `TaskUse` elsewhere, a load of 0 says that it is not known.)
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
