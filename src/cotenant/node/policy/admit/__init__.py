"""Admission policies of the node: each one decides whether a tenant's reservation fits on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from cotenant.node.model.admission import Reject
from cotenant.node.model.gpu import GpuCapacity
from cotenant.node.model.tenant import TenantSpec
from cotenant.node.policy.admit.overcommit import overcommit
from cotenant.node.policy.admit.reserve import reserve

AdmitPolicy: TypeAlias = Callable[[TenantSpec, GpuCapacity], Reject | None]
"""Return None to admit the tenant, or a `Reject` with the reason."""

POLICIES: Final[dict[str, AdmitPolicy]] = {
    "reserve": reserve,
    "overcommit": overcommit,
}
