"""May it come in? Of tenants, each policy judges one seat; of requests, when the answer is due."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from cotenant.domain.gpu import GpuRoom
from cotenant.domain.instant import Duration
from cotenant.domain.lane import Lane, View
from cotenant.domain.plan import Reject
from cotenant.domain.tenant import TenantSpec
from cotenant.policy.admit.anyone import anyone
from cotenant.policy.admit.deadline import deadline
from cotenant.policy.admit.overcommit import overcommit
from cotenant.policy.admit.reserve import reserve

AdmitPolicy: TypeAlias = Callable[[TenantSpec, GpuRoom], Reject | None]
"""None admits, a `Reject` says why not."""

POLICIES: Final[dict[str, AdmitPolicy]] = {
    "reserve": reserve,
    "overcommit": overcommit,
}

RequestPolicy: TypeAlias = Callable[[View, Lane, int], Duration]
"""How long from now the answer to one more request of this lane, with so many rows, is expected to take."""

REQUEST_POLICIES: Final[dict[str, RequestPolicy]] = {
    "deadline": deadline,
    "anyone": anyone,
}
