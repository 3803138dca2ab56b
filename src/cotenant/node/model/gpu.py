"""A GPU as the node knows it, and its free capacity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cotenant.units.value import Value

SOFT_PREFIX: Final = "soft:"
UUID_PREFIX: Final = "GPU-"
MIG_PREFIX: Final = "MIG-"
UUID_PREFIXES: Final = (UUID_PREFIX, MIG_PREFIX)


class Gpu(Value, frozen=True):
    """A device of the node."""

    name: str
    memory_bytes: int
    called: tuple[str, ...] = ()
    """Names by which a tenant may request it, most specific first: "soft:1", or UUID and index. Empty: its index."""

    def names(self, index: int) -> tuple[str, ...]:
        """Return the names by which a tenant may request the device at this index."""
        return self.called or (str(index), f"{SOFT_PREFIX}{index}")

    def is_called(self, requested: str, index: int) -> bool:
        """Return whether a requested name means this device; as in CUDA, a prefix of the UUID suffices."""
        names = self.names(index)
        return requested in names or (
            requested.startswith(UUID_PREFIXES) and any(name.startswith(requested) for name in names)
        )

    def visible(self, index: int) -> str:
        """Return the value of CUDA_VISIBLE_DEVICES that selects only this device."""
        return self.names(index)[0].removeprefix(SOFT_PREFIX)


def name_gpus(gpus: Sequence[int]) -> str:
    """Return "GPU 0", or "GPUs 0, 1 and 2"."""
    *before, last = gpus
    return f"GPUs {', '.join(map(str, before))} and {last}" if before else f"GPU {last}"


class GpuCapacity(Value, frozen=True):
    """What the reservations leave of a device."""

    index: int
    memory_free_bytes: int
    share_free_ppm: int
    tenants: int
