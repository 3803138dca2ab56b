"""May it come in? Of tenants, each policy judges one seat; of requests, when the answer is due."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from cotenant.domain.gpu import GpuRoom
from cotenant.domain.instant import Duration, Instant
from cotenant.domain.lane import Lane
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

RequestPolicy: TypeAlias = Callable[[Iterable[Lane], Lane, int, Instant, int, Instant], Duration]
"""From the lanes in which something waits, the request's lane and rows, when a core is free, the cores, the instant."""

REQUEST_POLICIES: Final[dict[str, RequestPolicy]] = {
    "deadline": deadline,
    "anyone": anyone,
}
