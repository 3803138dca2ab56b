"""The grant of a tenant: its slot, device and limits."""

from __future__ import annotations

import enum

import msgspec

from cotenant.units.value import Value


class Kind(enum.Enum):
    """The kind of a tenant: online work has a latency objective; offline work uses the remaining capacity."""

    ONLINE = "online"
    OFFLINE = "offline"


class Grant(Value, frozen=True):
    """What a tenant may use.

    Priority, share, objective and memory may change while it runs; slot, generation and devices never change. Share and
    memory apply on each of its devices.
    """

    slot: int
    generation: int
    kind: Kind
    priority: int
    share_ppm: int
    memory_bytes: int
    slo_ns: int
    gpu: int
    """The index of its first device; -1 on a node without devices."""
    more_gpus: tuple[int, ...] = ()
    """The indexes of its further devices, in the order in which the program numbers them."""

    @property
    def gpus(self) -> tuple[int, ...]:
        """Return the indexes of its devices; none on a node without devices."""
        return (self.gpu, *self.more_gpus) if self.gpu >= 0 else ()

    @property
    def places(self) -> tuple[int, ...]:
        """Return the indexes of the devices, or -1 on a node without devices."""
        return (self.gpu, *self.more_gpus)

    def on(self, gpu: int) -> Grant:
        """Return what it grants on one of its devices."""
        return self if not self.more_gpus else msgspec.structs.replace(self, gpu=gpu, more_gpus=())
