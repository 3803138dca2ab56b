"""Queue of requests to the API: by priority, within a rate, with a limited number at a time, and repeated on failure.

A request is sent only when its turn comes and it is still wanted, so a decision that became obsolete in the queue costs
nothing.
"""

from __future__ import annotations

import enum
import heapq
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from cotenant.cluster.kubernetes.api import NO_ANSWER, ApiRequest, Response
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS, Instant

_FIRST_DELAY_NS: Final = 250 * MILLISECOND_NS
_LONGEST_DELAY_NS: Final = 30 * SECOND_NS
_LONGEST_PAUSE_NS: Final = 5 * SECOND_NS
"""While the server does not answer, one request in this time tests whether it does again."""


class Urgency(enum.IntEnum):
    """Order in which requests are sent."""

    FINISH = 0
    """Claims of online pods, evictions, and the remaining steps of a start that was begun."""
    BEGIN = 1
    """First step of a start."""
    REPORT = 2
    """Conditions, events and predictions; they have a rate of their own."""


class Limits(NamedTuple):
    """Limits on requests."""

    per_second: float = 100.0
    burst: int = 200
    reports_per_second: float = 20.0
    in_flight: int = 8


class Operation:
    """A request, and what to do with its answer."""

    __slots__ = ("answered", "is_wanted", "request", "tries", "urgency")

    def __init__(
        self,
        urgency: Urgency,
        request: ApiRequest,
        answered: Callable[[Response], None],
        is_wanted: Callable[[], bool] | None = None,
    ) -> None:
        """`answered` gets every answer that is not temporary; `is_wanted` is asked just before each sending."""
        self.urgency = urgency
        self.request = request
        self.answered = answered
        self.is_wanted = is_wanted
        self.tries = 0


class TokenBucket:
    """Rate with a burst."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_ns = per_second / SECOND_NS
        self._burst = burst
        self._tokens = burst
        self._at: Instant | None = None

    def wait_ns(self, now: Instant) -> int:
        """Return how long it takes until a token is there; 0: there is one."""
        if self._at is not None:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_ns)
        self._at = now
        return 0 if self._tokens >= 1 else int((1 - self._tokens) / self._per_ns) + 1

    def take(self) -> None:
        """Take a token."""
        self._tokens -= 1


class Dispatcher:
    """Sends operations through `send(ticket, request)`, whose answers arrive at `answered(ticket, response)`."""

    def __init__(self, send: Callable[[int, ApiRequest], None], limits: Limits) -> None:
        self._send = send
        self._limits = limits
        self._queues: dict[Urgency, deque[Operation]] = {urgency: deque() for urgency in Urgency}
        self._delayed: list[tuple[Instant, int, Operation]] = []
        self._in_flight: dict[int, Operation] = {}
        self._all = TokenBucket(limits.per_second, limits.burst)
        self._reports = TokenBucket(limits.reports_per_second, max(1.0, limits.reports_per_second))
        self._ticket = 0
        self._silent_since = 0
        self._paused_until: Instant = 0
        self._due: Instant | None = None
        self.sent = 0
        self.failed = 0
        """Requests that were answered by a temporary error, or not at all."""

    @property
    def waiting(self) -> int:
        """Return the number of operations that were not sent yet."""
        return sum(len(queue) for queue in self._queues.values()) + len(self._delayed)

    @property
    def reports_waiting(self) -> int:
        return len(self._queues[Urgency.REPORT])

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def submit(self, operation: Operation) -> None:
        """Send an operation as soon as the limits permit; `dispatch` does it."""
        self._queues[operation.urgency].append(operation)
        self._due = 0

    def answered(self, ticket: int, response: Response, now: Instant) -> None:
        """Take the answer to a request."""
        operation = self._in_flight.pop(ticket)
        self._due = 0
        if response.status == NO_ANSWER:
            self._silent_since += 1
            pause_ns = min(_FIRST_DELAY_NS << min(self._silent_since - 1, 10), _LONGEST_PAUSE_NS)
            self._paused_until = now + pause_ns
        else:
            self._silent_since = 0
            self._paused_until = 0
        if not response.is_temporary:
            operation.answered(response)
            return
        self.failed += 1
        delay_ns = min(_FIRST_DELAY_NS << min(operation.tries, 10), _LONGEST_DELAY_NS)
        delay_ns = max(delay_ns, int(response.retry_after_s * SECOND_NS))
        operation.tries += 1
        self._ticket += 1
        heapq.heappush(self._delayed, (now + delay_ns, self._ticket, operation))

    def dispatch(self, now: Instant) -> None:
        """Send what the limits permit now."""
        while self._delayed and self._delayed[0][0] <= now:
            operation = heapq.heappop(self._delayed)[2]
            self._queues[operation.urgency].appendleft(operation)
        self._due = self._delayed[0][0] if self._delayed else None
        limit = self._limits.in_flight if not self._silent_since else 1
        while len(self._in_flight) < limit:
            operation_or_wait = self._next(now)
            if operation_or_wait is None:
                return
            if isinstance(operation_or_wait, int):
                self._wake_at(now + operation_or_wait)
                return
            self._ticket += 1
            self._in_flight[self._ticket] = operation_or_wait
            self.sent += 1
            self._send(self._ticket, operation_or_wait.request)

    def next_wakeup(self) -> Instant | None:
        """Return when `dispatch` has something to do without a further event; None: never."""
        return self._due

    def _wake_at(self, instant: Instant) -> None:
        self._due = instant if self._due is None else min(self._due, instant)

    def _next(self, now: Instant) -> Operation | int | None:
        """Return the next operation, or how long to wait for it, or None if there is none."""
        if now < self._paused_until:
            return self._paused_until - now
        for urgency in Urgency:
            queue = self._queues[urgency]
            while queue and not _is_wanted(queue[0]):
                queue.popleft()
            if not queue:
                continue
            wait_ns = self._all.wait_ns(now)
            if urgency is Urgency.REPORT:
                wait_ns = max(wait_ns, self._reports.wait_ns(now))
            if wait_ns:
                return wait_ns
            self._all.take()
            if urgency is Urgency.REPORT:
                self._reports.take()
            return queue.popleft()
        return None


def _is_wanted(operation: Operation) -> bool:
    return operation.is_wanted is None or operation.is_wanted()
