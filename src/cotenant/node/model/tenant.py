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
GPU_PATTERN: Final = r"^[A-Za-z0-9:._/-]*(,[A-Za-z0-9:._/-]+)*\Z"
GPU_LIMIT: Final = 16
"""The largest number of devices of one tenant; CT_DEVICES in native/hook/entry/session.h."""
GPU_TEXT_LIMIT: Final = NAME_LIMIT * GPU_LIMIT
POD_LIMIT: Final = 128
POD_PATTERN: Final = r"^([A-Za-z0-9][A-Za-z0-9-]*(/[A-Za-z0-9][A-Za-z0-9-]*)?)?\Z"
NEIGHBOURS_LIMIT: Final = 15
"""Larger counts are reported as this one, so that a join changes nothing for the tenants of a full device."""
_LARGEST: Final = (1 << 63) - 1

Priority = Annotated[int, msgspec.Meta(ge=PRIORITY_HIGHEST, le=PRIORITY_LOWEST)]
Amount = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]
SharePpm = Annotated[int, msgspec.Meta(ge=0, le=WHOLE_PPM)]
Name = Annotated[str, msgspec.Meta(max_length=NAME_LIMIT, pattern=NAME_PATTERN)]
GpuNames = Annotated[str, msgspec.Meta(max_length=GPU_TEXT_LIMIT, pattern=GPU_PATTERN)]
GpuCount = Annotated[int, msgspec.Meta(ge=1, le=GPU_LIMIT)]
PodText = Annotated[str, msgspec.Meta(max_length=POD_LIMIT, pattern=POD_PATTERN)]
CommandText = Annotated[str, msgspec.Meta(max_length=COMMAND_LIMIT)]


class TenantSpec(Value, frozen=True):
    """What a tenant requests; 0 means none. The bounds apply to every request that arrives over the wire.

    Memory and share are requested on each of its devices.
    """

    kind: Kind
    priority: Priority
    name: Name = ""
    slo_ns: Amount = 0
    memory_bytes: Amount = 0
    share_ppm: SharePpm = 0
    task: CommandText = ""
    command: CommandText = ""
    gpu: GpuNames = ""
    """The devices it must run on, as in `Gpu.called`, separated by commas; empty: the node chooses."""
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
    gpu_count: GpuCount = 1
    """The number of devices that the node chooses, if `gpu` names none."""

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """Return the names of the devices it must run on; none: the node chooses."""
        return tuple(self.gpu.split(",")) if self.gpu else ()

    @property
    def device_count(self) -> int:
        """Return the number of devices that it requests."""
        return len(self.gpu_names) or self.gpu_count

    @property
    def pod_uid(self) -> str:
        """Return the uid of its Kubernetes pod; empty: it is in none."""
        return self.pod.partition("/")[0]

    def __post_init__(self) -> None:
        """Reject contradictory requests, whatever their origin."""
        if self.slo_ns and self.kind is Kind.OFFLINE:
            raise ValueError("an offline tenant has no latency objective")
        if "," in self.gpu and self.gpu.count(",") >= GPU_LIMIT:
            raise ValueError(f"a tenant has at most {GPU_LIMIT} devices")


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

    def by_device(self) -> tuple[TenantView, ...]:
        """Return the tenant once for each of its devices, with its grant there."""
        if not self.tenant.grant.more_gpus:
            return (self,)
        return tuple(TenantView(on_device(self.tenant, gpu), self.connected) for gpu in self.tenant.grant.gpus)


def on_device(tenant: Tenant, gpu: int) -> Tenant:
    """Return a tenant with its grant on one of its devices."""
    return tenant if not tenant.grant.more_gpus else msgspec.structs.replace(tenant, grant=tenant.grant.on(gpu))


class Departure(Value, frozen=True):
    """A tenant that left, and how it ended."""

    tenant: Tenant
    ending: str
    ended_ns: int
