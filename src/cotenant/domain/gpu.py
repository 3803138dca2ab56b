"""What is a GPU to this node, and how much of it is still free?"""

from __future__ import annotations

from typing import Final

from cotenant.domain.value import Value

WHOLE_PPM: Final = 1_000_000
"""A share is counted in millionths of the GPU, so that sums are exact."""


class Gpu(Value, frozen=True):
    """A device as the node was told of it."""

    name: str
    memory_bytes: int


class GpuRoom(Value, frozen=True):
    """What is left of a device after the seats already given."""

    index: int
    memory_free_bytes: int
    share_free_ppm: int
    tenants: int
