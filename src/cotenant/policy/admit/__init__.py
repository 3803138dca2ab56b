"""May it come in? Each policy judges one seat: None admits, a `Reject` says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from cotenant.domain.gpu import GpuRoom
from cotenant.domain.plan import Reject
from cotenant.domain.tenant import TenantSpec
from cotenant.policy.admit.overcommit import overcommit
from cotenant.policy.admit.reserve import reserve

AdmitPolicy: TypeAlias = Callable[[TenantSpec, GpuRoom], Reject | None]

POLICIES: Final[dict[str, AdmitPolicy]] = {
    "reserve": reserve,
    "overcommit": overcommit,
}
