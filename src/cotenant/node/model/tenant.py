"""Tenants: what they request and what they are granted."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from cotenant.gate.grant import Grant, Kind
from cotenant.gate.rules import Limit
from cotenant.node.model.protection import Lifecycle, OnPressure
from cotenant.predict.usage import TaskUse
from cotenant.units.share import WHOLE_PPM
from cotenant.units.value import Value

PRIORITY_HIGHEST: Final = 0
PRIORITY_LOWEST: Final = 9
DEFAULT_PRIORITY: Final = {Kind.ONLINE: 2, Kind.OFFLINE: 7}
NAME_LIMIT: Final = 64
COMMAND_LIMIT: Final = 512
ENDING_LIMIT: Final = 256
NAME_PATTERN: Final = r"^([A-Za-z0-9][A-Za-z0-9._-]*)?\Z"  # not $, which lets a newline follow
GPU_PATTERN: Final = r"^[A-Za-z0-9:._/-]*\Z"
POD_LIMIT: Final = 128
POD_PATTERN: Final = r"^([A-Za-z0-9][A-Za-z0-9-]*(/[A-Za-z0-9][A-Za-z0-9-]*)?)?\Z"
NEIGHBOURS_LIMIT: Final = 15
"""Larger counts are reported as this one, so that a join changes nothing for the tenants of a full device."""
_LARGEST: Final = (1 << 63) - 1

Priority = Annotated[int, msgspec.Meta(ge=PRIORITY_HIGHEST, le=PRIORITY_LOWEST)]
Amount = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]
SharePpm = Annotated[int, msgspec.Meta(ge=0, le=WHOLE_PPM)]
Name = Annotated[str, msgspec.Meta(max_length=NAME_LIMIT, pattern=NAME_PATTERN)]
GpuName = Annotated[str, msgspec.Meta(max_length=NAME_LIMIT, pattern=GPU_PATTERN)]
PodText = Annotated[str, msgspec.Meta(max_length=POD_LIMIT, pattern=POD_PATTERN)]
CommandText = Annotated[str, msgspec.Meta(max_length=COMMAND_LIMIT)]


class TenantSpec(Value, frozen=True):
    """What a tenant requests; 0 means none. The bounds apply to every request that arrives over the wire."""

    kind: Kind
    priority: Priority
    name: Name = ""
    slo_ns: Amount = 0
    memory_bytes: Amount = 0
    share_ppm: SharePpm = 0
    task: CommandText = ""
    command: CommandText = ""
    gpu: GpuName = ""
    """The device it must run on, as in `Gpu.called`; empty: the node chooses."""
    on_pressure: OnPressure = OnPressure.EVICT
    """What happens to an offline tenant when an online tenant needs its memory."""
    grace_ns: Amount = 0
    """Time between the request to exit and the kill; 0: the node's default."""
    limit: Limit = Limit.OFF
    """How its share limits its compute."""
    use: TaskUse | None = None
    """Device use according to its profile; None: not measured yet."""
    pod: PodText = ""
    """The uid of its Kubernetes pod, and after a slash that of its claim. Only an operator can set it."""

    @property
    def pod_uid(self) -> str:
        """Return the uid of its Kubernetes pod; empty: it is in none."""
        return self.pod.partition("/")[0]

    def __post_init__(self) -> None:
        """Reject contradictory requests, whatever their origin."""
        if self.slo_ns and self.kind is Kind.OFFLINE:
            raise ValueError("an offline tenant has no latency objective")


class Tenant(Value, frozen=True):
    """A holder of a slot; the kernel supplied pid and uid."""

    name: str
    grant: Grant
    spec: TenantSpec
    pid: int
    uid: int
    joined_ns: int
    paused: bool = False
    """Whether an operator paused its launches."""
    lifecycle: Lifecycle = Lifecycle()
    restarts: int = 0
    """How often its parent started the program again."""


class TenantView(Value, frozen=True):
    """A tenant and whether its parent is connected."""

    tenant: Tenant
    connected: bool


class Departure(Value, frozen=True):
    """A tenant that left, and how it ended."""

    tenant: Tenant
    ending: str
    ended_ns: int
