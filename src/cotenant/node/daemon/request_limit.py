"""Limits how fast users and peers can make the node write, and counts what it refused or dropped without a record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from cotenant.node.daemon.rate_limit import Rate
from cotenant.node.model.admission import Reason, Reject
from cotenant.node.model.event import (
    DisruptionAnnounced,
    Event,
    EvictionRequested,
    NodeReported,
    ObjectiveChanged,
    PriorityChanged,
    QuitRequested,
    RulesChanged,
    ShareChanged,
    TenantJoined,
    TenantRestarted,
    TenantRestored,
    TenantResumed,
    TenantsPaused,
    TenantSuspended,
)
from cotenant.node.model.log_event import LogEventKind
from cotenant.units.instant import SECOND_NS, Duration, Instant
from cotenant.units.text import counted

STRANGER_RATE: Final = (64, SECOND_NS // 8)
"""Requests of another user that may come at once, and the interval at which further ones are handled."""
OWN_RATE: Final = (4096, SECOND_NS // 256)
"""The same for the user that runs the node, whose scripts may start many programs at once."""
PEER_RATE: Final = (64, SECOND_NS // 8)
"""The same for the messages of one tenant's parent about its program."""
SUMMARY_NS: Final = 10 * SECOND_NS
"""The shortest time between two summaries of what was dropped."""
_SOON_NS: Final = SECOND_NS
_USERS_LIMIT: Final = 32
_NO_USER: Final = -1
_OF_USER: Final = (
    TenantJoined,
    TenantResumed,
    TenantsPaused,
    PriorityChanged,
    ShareChanged,
    ObjectiveChanged,
    EvictionRequested,
    DisruptionAnnounced,
)
_OF_PEER: Final = (TenantSuspended, TenantRestored, TenantRestarted, QuitRequested)


class DroppedRequests:
    """Counts by user what the node refused or dropped without a turn; a timer of the loop that reports the sums."""

    def __init__(self, post: Callable[[Event], None]) -> None:
        """`post` receives a summary at most once per `SUMMARY_NS`."""
        self._post = post
        self._counts: Counter[tuple[int, str]] = Counter()
        self._due: Instant | None = None
        self._last: Instant | None = None
        self.total = 0

    def count(self, uid: int, what: str, now: Instant) -> None:
        """Count one request; `what` is a plural noun with what happened to it, from a closed list of the code."""
        self.total += 1
        users = {user for user, _ in self._counts}
        self._counts[uid if uid in users or len(users) < _USERS_LIMIT else _NO_USER, what] += 1
        if self._due is None:
            self._due = now + _SOON_NS if self._last is None else max(now + _SOON_NS, self._last + SUMMARY_NS)

    def next_wakeup(self) -> Instant | None:
        """Return when the next summary is due."""
        return self._due

    def wake(self, now: Instant) -> None:
        """Report the sums since the last summary."""
        self._due, self._last = None, now
        parts = [
            f"{number} {what} of {f'user {uid}' if uid != _NO_USER else 'other users'}"
            for (uid, what), number in sorted(self._counts.items())
        ]
        text = f"{counted(sum(self._counts.values()), 'request')} not recorded one by one: {', '.join(parts)}"
        self._counts.clear()
        self._post(NodeReported(LogEventKind.REQUESTS_DROPPED, text))


class RequestLimiter:
    """Decides whether a request may become a turn, which is written to the journal and the log."""

    def __init__(self, own_uid: int) -> None:
        """`own_uid` is the user that runs the node."""
        self._own_uid = own_uid
        self._strangers = Rate(*STRANGER_RATE)
        self._own = Rate(*OWN_RATE)
        self._peers = Rate(*PEER_RATE)

    def wait_ns(self, event: Event, now: Instant) -> Duration:
        """Return 0 if the event may be handled, else how long its sender must wait.

        The end of a tenant is never limited; there is at most one per join.
        """
        if isinstance(event, _OF_USER):
            return self._of_user(event.uid).wait_ns(event.uid, now)
        if isinstance(event, RulesChanged):
            uid = self._own_uid if event.is_owner else _NO_USER
            return self._of_user(uid).wait_ns(uid, now)
        return self._peers.wait_ns(event.peer, now) if isinstance(event, _OF_PEER) else 0

    def _of_user(self, uid: int) -> Rate:
        return self._own if uid == self._own_uid else self._strangers


def user_of(event: Event) -> int:
    """Return the user that sent a request; -1 where the event does not name one."""
    uid = getattr(event, "uid", _NO_USER)
    return uid if isinstance(uid, int) else _NO_USER


def too_many(wait_ns: Duration) -> Reject:
    """Return the refusal of a request that came too early."""
    return Reject(Reason.TOO_MANY, "this user sends requests faster than the node accepts them", max(wait_ns, 1))
