"""Reserve: admits a tenant only if its reservation fits."""

from __future__ import annotations

from cotenant.node.model.admission import Reason, Reject
from cotenant.node.model.gpu import GpuCapacity
from cotenant.node.model.tenant import TenantSpec
from cotenant.units.text import format_share, format_size


def reserve(spec: TenantSpec, capacity: GpuCapacity) -> Reject | None:
    """Reject a tenant whose memory or share exceeds the unreserved capacity."""
    if spec.memory_bytes > capacity.memory_free_bytes:
        free = format_size(max(capacity.memory_free_bytes, 0))
        requested = format_size(spec.memory_bytes)
        return Reject(
            Reason.NO_MEMORY,
            f"requested {requested} of device memory, but GPU {capacity.index} has only {free} unreserved",
        )
    if spec.share_ppm > capacity.share_free_ppm:
        free = format_share(max(capacity.share_free_ppm, 0))
        requested = format_share(spec.share_ppm)
        detail = f"requested a share of {requested}, but GPU {capacity.index} has only {free} unreserved"
        return Reject(Reason.NO_SHARE, detail)
    return None
