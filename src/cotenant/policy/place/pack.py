"""Pack: the fullest device first, so that whole devices stay free."""

from __future__ import annotations

from cotenant.domain.gpu import GpuRoom


def pack(room: GpuRoom) -> tuple[int, ...]:
    """Most tenants, then least free share, then least free memory, then the lowest index."""
    return (-room.tenants, room.share_free_ppm, room.memory_free_bytes, room.index)
