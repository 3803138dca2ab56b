"""Spread: prefers the emptiest device, so that tenants share as late as possible."""

from __future__ import annotations

from cotenant.node.model.gpu import GpuCapacity


def spread(capacity: GpuCapacity) -> tuple[int, ...]:
    """Rank by most free share, most free memory, fewest tenants, lowest index."""
    return (-capacity.share_free_ppm, -capacity.memory_free_bytes, capacity.tenants, capacity.index)
