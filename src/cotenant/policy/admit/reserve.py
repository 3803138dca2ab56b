"""Reserve: what is promised is there; a promise that no longer fits is not made."""

from __future__ import annotations

from cotenant.domain.gpu import GpuRoom
from cotenant.domain.plan import Reason, Reject
from cotenant.domain.tenant import TenantSpec
from cotenant.format.quantity import format_share, format_size


def reserve(spec: TenantSpec, room: GpuRoom) -> Reject | None:
    """Memory and share must both fit into what earlier promises left."""
    if spec.memory_bytes > room.memory_free_bytes:
        free = format_size(max(room.memory_free_bytes, 0))
        asked = format_size(spec.memory_bytes)
        return Reject(
            Reason.NO_MEMORY, f"asked for {asked} of device memory, GPU {room.index} has {free} not promised yet"
        )
    if spec.share_ppm > room.share_free_ppm:
        free = format_share(max(room.share_free_ppm, 0))
        asked = format_share(spec.share_ppm)
        detail = f"asked for a share of {asked}, GPU {room.index} has {free} not promised yet"
        return Reject(Reason.NO_SHARE, detail)
    return None
