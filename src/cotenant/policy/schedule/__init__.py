"""Who runs when? Of tenants: the pages that the gate reads. Of a server's requests: a policy of this table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from cotenant.domain.instant import Instant
from cotenant.domain.lane import Hold, Lane, Launch
from cotenant.policy.schedule.fifo import fifo

ServePolicy: TypeAlias = Callable[[Iterable[Lane], int, int, Instant], Launch | Hold | None]
"""From the lanes in which something waits, the free cores, all cores and the instant: the next run, if any."""

SERVE_POLICIES: Final[dict[str, ServePolicy]] = {
    "fifo": fifo,
}
