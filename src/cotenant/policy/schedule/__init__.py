"""Who runs when? Of tenants: the pages that the gate reads. Of a server's requests: a policy of this table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from cotenant.domain.lane import Hold, Launch, View
from cotenant.policy.schedule.fifo import fifo

ServePolicy: TypeAlias = Callable[[View], Launch | Hold | None]
"""The next run, if any; asked again until there is none."""

SERVE_POLICIES: Final[dict[str, ServePolicy]] = {
    "fifo": fifo,
}
