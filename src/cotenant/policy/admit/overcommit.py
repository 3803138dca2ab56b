"""Overcommit: everybody comes in; promises may add up to more than there is."""

from __future__ import annotations

from cotenant.domain.gpu import GpuRoom
from cotenant.domain.plan import Reject
from cotenant.domain.tenant import TenantSpec


def overcommit(spec: TenantSpec, room: GpuRoom) -> Reject | None:
    """Admit: protection at run time decides who gives way."""
    del spec, room
    return None
