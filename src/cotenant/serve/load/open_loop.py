"""Open-loop load generator: requests are sent at instants that were drawn beforehand.

One thread with non-blocking sockets sends requests that were encoded once. Latency counts from the *scheduled* send
time: if the server or this process delays requests, their clients would have noticed. The delay of this process is also
counted separately (`late_sends`).

The same loop also runs clients that wait for their answers, for two measurements: the latency of a single request, and
the maximum throughput of a server.
"""

from __future__ import annotations

import gc
import itertools
import select
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from cotenant.runner.clock import monotonic_ns, thread_ns
from cotenant.runner.thread_priority import request_low_latency
from cotenant.serve.load.connections import ConnectionPool
from cotenant.serve.model.goodput import Goodput, GoodputRecorder, RequestOutcome
from cotenant.units.instant import SECOND_NS, Duration, Instant

_BACKLOG_LIMIT: Final = 100_000
"""Maximum number of requests that wait for a free connection; requests beyond it are not sent."""
_PROGRESS_INTERVAL_NS: Final = SECOND_NS
_NO_CONNECTION: Final = "no free connection"


class ScheduledSend(NamedTuple):
    """A scheduled request: the send time from the start of the test, and the index of the message."""

    at_ns: Duration
    message_index: int


class RequestSource(Protocol):
    """Source of scheduled requests."""

    def due(self) -> ScheduledSend | None:
        """Return the next request, or None: none before the next answer, or none at all."""
        ...

    def advance(self) -> None:
        """Advance after the due request was sent."""
        ...

    def answered(self, at_ns: Duration) -> None:
        """Note that a request has ended."""
        ...


class OpenLoopSource:
    """Requests at fixed instants that do not depend on answers."""

    def __init__(self, sends: Iterator[tuple[Duration, int]]) -> None:
        """The sends are in time order."""
        self._sends = sends
        self._next = next(sends, None)

    def due(self) -> ScheduledSend | None:
        """Return the next request."""
        return None if self._next is None else ScheduledSend(*self._next)

    def advance(self) -> None:
        """Advance to the next request."""
        self._next = next(self._sends, None)

    def answered(self, at_ns: Duration) -> None:
        """Do nothing: an open loop ignores answers."""


class ClosedLoopSource:
    """A number of clients that each send the next request after an answer, to the models in turn."""

    def __init__(self, clients: int, messages: int, until_ns: Duration) -> None:
        """All clients start at once."""
        self._until_ns = until_ns
        self._turns = itertools.cycle(range(messages))
        self._waiting = deque(ScheduledSend(0, next(self._turns)) for _ in range(clients))

    def due(self) -> ScheduledSend | None:
        """Return the request of a client that has its answer."""
        return self._waiting[0] if self._waiting else None

    def advance(self) -> None:
        """Advance after the request was sent."""
        self._waiting.popleft()

    def answered(self, at_ns: Duration) -> None:
        """Schedule the client's next request, until the end of the test."""
        if at_ns < self._until_ns:
            self._waiting.append(ScheduledSend(at_ns, next(self._turns)))


class MeasureWindow(msgspec.Struct, frozen=True):
    """Which requests are counted, and the client's timeout."""

    warm_ns: Duration
    """Requests scheduled before this are not counted."""
    until_ns: Duration
    """Requests scheduled from here on are not counted."""
    patience_ns: Duration
    """Timeout of the clients."""


class LoadReport(msgspec.Struct, frozen=True):
    """Results by model, and the number of responses by status."""

    models: tuple[Goodput, ...]
    statuses: dict[str, int]
    took_s: float
    core_part: float
    """Fraction of one core that the generator used; on the machine of the server, the server had that much less."""


class _InFlight(NamedTuple):
    message_index: int
    scheduled: Instant


class LoadGenerator:
    """One load test of one server."""

    def __init__(self, pool: ConnectionPool, targets: Sequence[tuple[str, Duration]], window: MeasureWindow) -> None:
        """Targets are models and their objectives, in the order of the messages."""
        self._pool = pool
        self._window = window
        self._recorders = [GoodputRecorder(name, slo_ns) for name, slo_ns in targets]
        self._in_flight: dict[int, _InFlight] = {}
        self._order: deque[tuple[Instant, int]] = deque()  # in the order of their timeouts
        self._backlog: deque[int] = deque()
        self._statuses: dict[str, int] = {}
        self._tickets = itertools.count(1)
        self._begin = 0

    def run(self, source: RequestSource, on_progress: Callable[[float], None] = lambda _: None) -> LoadReport:
        """Send all requests and wait until each is answered or timed out.

        `on_progress` is called every second with the elapsed time.
        """
        request_low_latency()
        was_collecting = gc.isenabled()
        gc.disable()  # no cycles are created here, and a collection would delay sends
        try:
            return self._run(source, on_progress)
        finally:
            if was_collecting:
                gc.enable()

    def _run(self, source: RequestSource, on_progress: Callable[[float], None]) -> LoadReport:
        poller = self._pool.fileno()
        cpu_began_ns = thread_ns()
        self._begin = now = monotonic_ns()
        last_progress = now
        while True:
            due = source.due()
            while due is not None and self._begin + due.at_ns <= now:
                source.advance()
                self._send(due, now)
                due = source.due()
                now = monotonic_ns()
            self._expire(now, source)
            while self._backlog and self._resend(now):
                pass
            due = source.due()
            if due is None and not self._in_flight:
                break
            until = min(
                now + _PROGRESS_INTERVAL_NS if due is None else self._begin + due.at_ns,
                self._order[0][0] if self._order else now + _PROGRESS_INTERVAL_NS,
                now + _PROGRESS_INTERVAL_NS,
            )
            if until > now:
                select.select(
                    (poller,), (), (), (until - now) / SECOND_NS
                )  # the timeout of epoll has a resolution of milliseconds
            for fd, mask in self._pool.poll():
                for ticket, outcome, status in self._pool.handle(fd, mask):
                    now = monotonic_ns()
                    self._end(ticket, outcome, status, now, source)
            now = monotonic_ns()
            if now - last_progress >= _PROGRESS_INTERVAL_NS:
                last_progress = now
                on_progress((now - self._begin) / SECOND_NS)
        for_ns = self._window.until_ns - self._window.warm_ns
        goodputs = tuple(recorder.goodput(for_ns) for recorder in self._recorders)
        took_ns = max(now - self._begin, 1)
        core_part = round((thread_ns() - cpu_began_ns) / took_ns, 3)
        return LoadReport(goodputs, dict(sorted(self._statuses.items())), round(took_ns / SECOND_NS, 3), core_part)

    def _counts(self, scheduled: Instant) -> bool:
        return self._window.warm_ns <= scheduled - self._begin < self._window.until_ns

    def _send(self, due: ScheduledSend, now: Instant) -> None:
        ticket = next(self._tickets)
        scheduled = self._begin + due.at_ns
        self._in_flight[ticket] = _InFlight(due.message_index, scheduled)
        self._order.append((scheduled + self._window.patience_ns, ticket))
        if self._backlog or not self._pool.begin(ticket, due.message_index):
            if len(self._backlog) >= _BACKLOG_LIMIT:
                self._end(ticket, RequestOutcome.UNSENT, _NO_CONNECTION, now, None)
            else:
                self._backlog.append(ticket)
        elif self._counts(scheduled):
            self._recorders[due.message_index].record_send(now - scheduled)

    def _resend(self, now: Instant) -> bool:
        ticket = self._backlog[0]
        request = self._in_flight.get(ticket)
        if request is not None:
            if not self._pool.begin(ticket, request.message_index):
                return False
            if self._counts(request.scheduled):
                self._recorders[request.message_index].record_send(now - request.scheduled)
        self._backlog.popleft()
        return True

    def _expire(self, now: Instant, source: RequestSource) -> None:
        while self._order and (self._order[0][0] <= now or self._order[0][1] not in self._in_flight):
            _, ticket = self._order.popleft()
            if ticket in self._in_flight:
                is_unsent = ticket in self._backlog
                self._pool.abandon(ticket)
                outcome = RequestOutcome.UNSENT if is_unsent else RequestOutcome.EXPIRED
                self._end(ticket, outcome, _NO_CONNECTION if is_unsent else outcome.value, now, source)

    def _end(
        self, ticket: int, outcome: RequestOutcome, status: str, now: Instant, source: RequestSource | None
    ) -> None:
        request = self._in_flight.pop(ticket, None)
        if request is None:
            return
        if self._counts(request.scheduled):
            self._recorders[request.message_index].record_end(outcome, now - request.scheduled)
            self._statuses[status] = self._statuses.get(status, 0) + 1
        if source is not None:
            source.answered(now - self._begin)
