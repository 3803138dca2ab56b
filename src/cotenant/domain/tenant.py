"""Who shares the GPU, and what was it promised?"""

from __future__ import annotations

import enum
from typing import Annotated, Final

import msgspec

from cotenant.domain.gate import Limit
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.protect import OnPressure, Standing
from cotenant.domain.use import TaskUse
from cotenant.domain.value import Value

PRIORITY_HIGHEST: Final = 0
PRIORITY_LOWEST: Final = 9
NAME_LIMIT: Final = 64
COMMAND_LIMIT: Final = 512
ENDING_LIMIT: Final = 256
NAME_PATTERN: Final = r"^([A-Za-z0-9][A-Za-z0-9._-]*)?\Z"  # not $, which lets a newline follow
GPU_PATTERN: Final = r"^[A-Za-z0-9:._/-]*\Z"
NEIGHBOURS_LIMIT: Final = 15
"""More than these are counted as these: whoever comes to a crowd then changes nothing for the others in it."""
_LARGEST: Final = (1 << 63) - 1

Priority = Annotated[int, msgspec.Meta(ge=PRIORITY_HIGHEST, le=PRIORITY_LOWEST)]
Amount = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]
SharePpm = Annotated[int, msgspec.Meta(ge=0, le=WHOLE_PPM)]
Name = Annotated[str, msgspec.Meta(max_length=NAME_LIMIT, pattern=NAME_PATTERN)]
GpuName = Annotated[str, msgspec.Meta(max_length=NAME_LIMIT, pattern=GPU_PATTERN)]
CommandText = Annotated[str, msgspec.Meta(max_length=COMMAND_LIMIT)]


class Kind(enum.Enum):
    """Online work has a latency objective; offline work takes what is left."""

    ONLINE = "online"
    OFFLINE = "offline"


class TenantSpec(Value, frozen=True):
    """What a tenant asks for. Zero means: nothing asked. The limits hold for whatever comes in over the wire."""

    kind: Kind
    priority: Priority
    name: Name = ""
    slo_ns: Amount = 0
    memory_bytes: Amount = 0
    share_ppm: SharePpm = 0
    task: CommandText = ""
    command: CommandText = ""
    gpu: GpuName = ""
    """The one device it must be on, as `Gpu.called` has it; empty: the node chooses."""
    on_pressure: OnPressure = OnPressure.EVICT
    """What becomes of it when an online tenant needs its memory; of an offline tenant only."""
    grace_ns: Amount = 0
    """How long its program has between the request to end and its end; zero: as the node has it."""
    limit: Limit = Limit.OFF
    """What its share of the compute holds it to, if it has one."""
    use: TaskUse | None = None
    """What its profile says that it does with a device; None: nobody measured it yet."""

    def __post_init__(self) -> None:
        """Refuse what contradicts itself, wherever it came from."""
        if self.slo_ns and self.kind is Kind.OFFLINE:
            raise ValueError("an offline tenant has no latency objective")


class Terms(Value, frozen=True):
    """What a tenant may do now; `gpu` is -1 on a node that has none.

    Priority, share and objective may change while it runs; slot, generation and device never do.
    """

    slot: int
    generation: int
    kind: Kind
    priority: int
    share_ppm: int
    memory_bytes: int
    slo_ns: int
    gpu: int


class Tenant(Value, frozen=True):
    """Somebody who holds a slot; pid and uid are the kernel's word for who that is."""

    name: str
    terms: Terms
    spec: TenantSpec
    pid: int
    uid: int
    joined_ns: int
    paused: bool = False
    """Whether somebody wants its launches to wait at the gate."""
    standing: Standing = Standing()
    restarts: int = 0
    """How often its parent started the program again."""


class TenantView(Value, frozen=True):
    """A tenant as others see it: connected, or away and expected back."""

    tenant: Tenant
    connected: bool


class Departure(Value, frozen=True):
    """A tenant that left, and how."""

    tenant: Tenant
    ending: str
    ended_ns: int
