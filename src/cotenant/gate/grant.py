"""The grant of a tenant: its slot, device and limits."""

from __future__ import annotations

import enum

from cotenant.units.value import Value


class Kind(enum.Enum):
    """The kind of a tenant: online work has a latency objective; offline work uses the remaining capacity."""

    ONLINE = "online"
    OFFLINE = "offline"


class Grant(Value, frozen=True):
    """What a tenant may use.

    Priority, share, objective and memory may change while it runs; slot, generation and device never change.
    """

    slot: int
    generation: int
    kind: Kind
    priority: int
    share_ppm: int
    memory_bytes: int
    slo_ns: int
    gpu: int
    """The index of the device; -1 on a node without devices."""
