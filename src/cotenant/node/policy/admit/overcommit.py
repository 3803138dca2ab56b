"""Overcommit: admits every tenant; reservations may exceed the device."""

from __future__ import annotations

from cotenant.node.model.admission import Reject
from cotenant.node.model.gpu import GpuCapacity
from cotenant.node.model.tenant import TenantSpec


def overcommit(spec: TenantSpec, capacity: GpuCapacity) -> Reject | None:
    """Admit the tenant; protection at run time resolves conflicts."""
    del spec, capacity
    return None
