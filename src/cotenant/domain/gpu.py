"""What is a GPU to this node, and how much of it is still free?"""

from __future__ import annotations

from typing import Final

from cotenant.domain.value import Value

WHOLE_PPM: Final = 1_000_000
"""A share is counted in millionths of the GPU, so that sums are exact."""

SOFT_PREFIX: Final = "soft:"
UUID_PREFIX: Final = "GPU-"


class Gpu(Value, frozen=True):
    """A device as the node was told of it."""

    name: str
    memory_bytes: int
    called: tuple[str, ...] = ()
    """What a tenant may call it, the surest name first: "soft:1", or UUID and number. Nothing: its place counts."""

    def names(self, index: int) -> tuple[str, ...]:
        """What a tenant may call the device at this place of the node's list."""
        return self.called or (str(index), f"{SOFT_PREFIX}{index}")

    def is_called(self, wish: str, index: int) -> bool:
        """Whether this is the device that somebody wants; as for CUDA, the beginning of a UUID is enough."""
        names = self.names(index)
        return wish in names or (wish.startswith(UUID_PREFIX) and any(name.startswith(wish) for name in names))

    def visible(self, index: int) -> str:
        """What CUDA_VISIBLE_DEVICES must say for a program to find this device and no other."""
        return self.names(index)[0].removeprefix(SOFT_PREFIX)


class GpuRoom(Value, frozen=True):
    """What is left of a device after the seats already given."""

    index: int
    memory_free_bytes: int
    share_free_ppm: int
    tenants: int
