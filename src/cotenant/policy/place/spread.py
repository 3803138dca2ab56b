"""Spread: the emptiest device first, so that neighbours meet as late as possible."""

from __future__ import annotations

from cotenant.domain.gpu import GpuRoom


def spread(room: GpuRoom) -> tuple[int, ...]:
    """Most free share, then most free memory, then fewest tenants, then the lowest index."""
    return (-room.share_free_ppm, -room.memory_free_bytes, room.tenants, room.index)
