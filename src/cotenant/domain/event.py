"""What can a node be told? Every event is a fact about the outside; nothing else moves its state."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from cotenant.domain.gpu import Gpu
from cotenant.domain.instant import Duration, Instant
from cotenant.domain.tenant import ENDING_LIMIT, Departure, Tenant, TenantSpec
from cotenant.domain.value import Value

SLOTS_LIMIT: Final = 1024
"""A snapshot of so many tenants, with the longest texts they may have, still fits into one turn of the journal."""
DEPARTED_LIMIT: Final = 64
NEVER: Final = -1
"""In place of an instant that is not set: instants of a clock are never negative."""


class NodeSettings(Value, frozen=True):
    """How a node is set up, as far as its decisions depend on it."""

    slots: int
    grace_ns: Duration
    idle_exit_ns: Duration = 0
    place: str = "spread"
    admit: str = "reserve"
    gpus: tuple[Gpu, ...] = ()


class NodeStarted(Value, frozen=True, tag="started"):
    """The daemon runs, for the first time or again; who was there before is now expected back."""

    settings: NodeSettings
    version: str
    unix_ns: int


class NodeRestored(Value, frozen=True, tag="restored"):
    """The state at the head of a new journal segment: replaces all that was known."""

    settings: NodeSettings
    turn: int
    generations: tuple[int, ...]
    tenants: tuple[tuple[int, Tenant], ...]
    departed: tuple[Departure, ...]
    away_until_ns: Instant
    idle_since_ns: Instant


class TenantJoined(Value, frozen=True, tag="joined"):
    """A peer asks to become a tenant; pid and uid come from the kernel, not from the peer."""

    peer: int
    pid: int
    uid: int
    spec: TenantSpec


class TenantResumed(Value, frozen=True, tag="resumed"):
    """A peer says that it holds this slot already: the node was away, not the tenant."""

    peer: int
    pid: int
    uid: int
    slot: int
    generation: int


class TenantLeft(Value, frozen=True, tag="left"):
    """A tenant's program ended and its parent says how."""

    peer: int
    ending: Annotated[str, msgspec.Meta(max_length=ENDING_LIMIT)]


class PeerLost(Value, frozen=True, tag="lost"):
    """A connection closed without a word: the kernel's own crash report."""

    peer: int


class Woke(Value, frozen=True, tag="woke"):
    """The instant that was asked for has come."""


class NodeStopping(Value, frozen=True, tag="stopping"):
    """The daemon was told to stop; tenants go on under their last terms."""

    reason: str


Event: TypeAlias = (
    NodeStarted | NodeRestored | TenantJoined | TenantResumed | TenantLeft | PeerLost | Woke | NodeStopping
)
