"""Pack: prefers the fullest device, so that whole devices stay free."""

from __future__ import annotations

from cotenant.node.model.gpu import GpuCapacity


def pack(capacity: GpuCapacity) -> tuple[int, ...]:
    """Rank by most tenants, least free share, least free memory, lowest index."""
    return (-capacity.tenants, capacity.share_free_ppm, capacity.memory_free_bytes, capacity.index)
