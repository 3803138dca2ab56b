"""The rules of the gate: the policy of a device and the entries of its tenant table."""

from __future__ import annotations

import enum
from typing import Final

from cotenant.units.value import Value

ENTRIES_LIMIT: Final = 96
"""The maximum number of tenants of one device."""


class GatePolicy(enum.Enum):
    """Which launches pass while a tenant of higher priority is active: all, none, or those that fit its idle gaps."""

    OPEN = "open"
    STRICT = "strict"
    FILL = "fill"


class Limit(enum.Enum):
    """How strictly a tenant is limited to its share of compute."""

    OFF = "off"
    CONSERVING = "conserving"
    """Its share among tenants of equal priority, plus what they do not use."""
    STATIC = "static"
    """Its share, also while the device is otherwise idle."""


class GateEntry(Value, frozen=True):
    """One entry of the tenant table: what the other tenants of a device know about a tenant."""

    slot: int
    generation: int
    priority: int
    online: bool
    paused: bool = False
    guaranteed_ppm: int = 0
    """The share of time that it gets regardless of tenants of higher priority."""
    ending: bool = False
    """Whether it was asked to end; it may launch only what its shutdown needs."""
    limit_ppm: int = 0
    """The share of the device, among tenants of equal priority, to which it is limited."""
    static: bool = False
    """Whether the limit also applies while the rest of the device is idle."""


class ProcessEntry(Value, frozen=True):
    """One attached process of a tenant; the tenant table has an entry for each."""

    index: int
    """The place of its pages among those of all processes of the device."""
    generation: int
    """Unique among all processes that the node attached."""
    tenant: int
    """The slot of its tenant: processes with the same number share the tenant's account."""
    entry: GateEntry
    """The entry of its tenant."""


class GateRules(Value, frozen=True):
    """The tenant table of a device. docs/concepts/gate.md explains the default values."""

    policy: GatePolicy = GatePolicy.FILL
    bound_ns: int = 250_000
    """Device time that a lower-priority tenant may have in flight while no higher-priority tenant is active."""
    delay_ppm: int = 50_000
    """The share of its time that a tenant may lose to tenants of lower priority."""
    patience_ns: int = 2_000_000
    """A holder that is this late for its expected launch counts as idle."""
    switch_ns: int = 10_000
    """The cost of a context switch to another process and back; under MPS there is none."""
    spin_ppm: int = 350_000
    """The share of a processor that a waiting tenant may spend spinning."""
    entries: tuple[GateEntry, ...] = ()
    sm_ppm: int | None = None
    """Part of the SMs that lower-priority launches may occupy next to an active holder under MPS; None: as much as the
    measured loss of the holder permits."""
    ignored_priority_ppm: int = 0
    """Under MPS, the part of a holder's kernels that wait until a kernel of lower priority ends, instead of overtaking
    its blocks."""
