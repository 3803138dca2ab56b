"""How does a server fare under a load that does not wait for it? Requests leave at instants that were drawn before.

One thread over sockets that never block, with requests that were written once. A latency counts from the instant at
which the request was *meant* to leave: if the server, or this process, holds requests up, that is part of what its
clients would have seen. What this process itself is late by is counted apart (`late_sends`).

The same loop also plays clients that wait for their answers, for the two measurements that are about a server and not
about its clients: what one request takes alone, and how many a server can answer at all.
"""

from __future__ import annotations

import gc
import itertools
import select
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from cotenant.domain.goodput import Goodput, Tally, Verdict
from cotenant.domain.instant import SECOND_NS, Duration, Instant
from cotenant.live.clock import monotonic_ns, thread_ns
from cotenant.live.load.channel import Wire
from cotenant.live.prompt import be_prompt

_BACKLOG_LIMIT: Final = 100_000
"""Requests that wait for a free connection; more than that, and they are not sent at all."""
_LOOK_NS: Final = SECOND_NS
_NO_CONNECTION: Final = "no free connection"


class Sent(NamedTuple):
    """A request that is meant to leave: when, counted from the beginning, and which message."""

    at_ns: Duration
    place: int


class Source(Protocol):
    """Where requests come from."""

    def due(self) -> Sent | None:
        """The next one, or None: none before an answer comes, or none at all."""
        ...

    def left(self) -> None:
        """The one that was due is sent."""
        ...

    def answered(self, at_ns: Duration) -> None:
        """Some request is over."""
        ...


class OpenSource:
    """Requests at instants that nobody's answers move."""

    def __init__(self, sends: Iterator[tuple[Duration, int]]) -> None:
        """In the order of their instants."""
        self._sends = sends
        self._next = next(sends, None)

    def due(self) -> Sent | None:
        """The next instant."""
        return None if self._next is None else Sent(*self._next)

    def left(self) -> None:
        """On to the one after it."""
        self._next = next(self._sends, None)

    def answered(self, at_ns: Duration) -> None:
        """Moves nothing."""


class ClosedSource:
    """So many clients, each of which sends its next request when it has an answer; they ask the models in turn."""

    def __init__(self, clients: int, places: int, until_ns: Duration) -> None:
        """All of them begin at once."""
        self._until_ns = until_ns
        self._turns = itertools.cycle(range(places))
        self._waiting = deque(Sent(0, next(self._turns)) for _ in range(clients))

    def due(self) -> Sent | None:
        """Whoever has an answer and not sent yet."""
        return self._waiting[0] if self._waiting else None

    def left(self) -> None:
        """It has sent."""
        self._waiting.popleft()

    def answered(self, at_ns: Duration) -> None:
        """Its client goes on, until the time is over."""
        if at_ns < self._until_ns:
            self._waiting.append(Sent(at_ns, next(self._turns)))


class Terms(msgspec.Struct, frozen=True):
    """What counts, and how long a sender waits."""

    warm_ns: Duration
    """Requests that are meant to leave before this do not count."""
    until_ns: Duration
    """Nor those from here on, if there are any."""
    patience_ns: Duration
    """After which a sender gives a request up."""


class Loaded(msgspec.Struct, frozen=True):
    """How it went: each model's requests, and how often the server said what."""

    models: tuple[Goodput, ...]
    statuses: dict[str, int]
    took_s: float
    core_part: float
    """Of one core, what sending took: on a machine that serves as well, the server had so much less."""


class _Under(NamedTuple):
    place: int
    meant: Instant


class Generator:
    """One load on one server."""

    def __init__(self, wire: Wire, targets: Sequence[tuple[str, Duration]], terms: Terms) -> None:
        """Targets are models and their objectives, in the order of the wire's messages."""
        self._wire = wire
        self._terms = terms
        self._tallies = [Tally(name, slo_ns) for name, slo_ns in targets]
        self._under: dict[int, _Under] = {}
        self._order: deque[tuple[Instant, int]] = deque()  # by when they are given up
        self._backlog: deque[int] = deque()
        self._statuses: dict[str, int] = {}
        self._tickets = itertools.count(1)
        self._begin = 0

    def run(self, source: Source, look: Callable[[float], None] = lambda _: None) -> Loaded:
        """Until everything was sent, and is answered or given up; `look` hears each second how long it has been."""
        be_prompt()
        was_collecting = gc.isenabled()
        gc.disable()  # nothing here makes cycles, and a collection would hold up what is due
        try:
            return self._run(source, look)
        finally:
            if was_collecting:
                gc.enable()

    def _run(self, source: Source, look: Callable[[float], None]) -> Loaded:
        poller = self._wire.fileno()
        spent = thread_ns()
        self._begin = now = monotonic_ns()
        looked = now
        while True:
            due = source.due()
            while due is not None and self._begin + due.at_ns <= now:
                source.left()
                self._send(due, now)
                due = source.due()
                now = monotonic_ns()
            self._give_up(now, source)
            while self._backlog and self._resend(now):
                pass
            due = source.due()
            if due is None and not self._under:
                break
            until = min(
                now + _LOOK_NS if due is None else self._begin + due.at_ns,
                self._order[0][0] if self._order else now + _LOOK_NS,
                now + _LOOK_NS,
            )
            if until > now:
                select.select((poller,), (), (), (until - now) / SECOND_NS)  # epoll alone would wait in milliseconds
            for fd, mask in self._wire.poll():
                for ticket, verdict, status in self._wire.handle(fd, mask):
                    now = monotonic_ns()
                    self._end(ticket, verdict, status, now, source)
            now = monotonic_ns()
            if now - looked >= _LOOK_NS:
                looked = now
                look((now - self._begin) / SECOND_NS)
        for_ns = self._terms.until_ns - self._terms.warm_ns
        figures = tuple(tally.figures(for_ns) for tally in self._tallies)
        took_ns = max(now - self._begin, 1)
        part = round((thread_ns() - spent) / took_ns, 3)
        return Loaded(figures, dict(sorted(self._statuses.items())), round(took_ns / SECOND_NS, 3), part)

    def _counts(self, meant: Instant) -> bool:
        return self._terms.warm_ns <= meant - self._begin < self._terms.until_ns

    def _send(self, due: Sent, now: Instant) -> None:
        ticket = next(self._tickets)
        meant = self._begin + due.at_ns
        self._under[ticket] = _Under(due.place, meant)
        self._order.append((meant + self._terms.patience_ns, ticket))
        if self._backlog or not self._wire.begin(ticket, due.place):
            if len(self._backlog) >= _BACKLOG_LIMIT:
                self._end(ticket, Verdict.UNSENT, _NO_CONNECTION, now, None)
            else:
                self._backlog.append(ticket)
        elif self._counts(meant):
            self._tallies[due.place].sent(now - meant)

    def _resend(self, now: Instant) -> bool:
        ticket = self._backlog[0]
        under = self._under.get(ticket)
        if under is not None:
            if not self._wire.begin(ticket, under.place):
                return False
            if self._counts(under.meant):
                self._tallies[under.place].sent(now - under.meant)
        self._backlog.popleft()
        return True

    def _give_up(self, now: Instant, source: Source) -> None:
        while self._order and (self._order[0][0] <= now or self._order[0][1] not in self._under):
            _, ticket = self._order.popleft()
            if ticket in self._under:
                waits = ticket in self._backlog
                self._wire.abandon(ticket)
                verdict = Verdict.UNSENT if waits else Verdict.EXPIRED
                self._end(ticket, verdict, _NO_CONNECTION if waits else verdict.value, now, source)

    def _end(self, ticket: int, verdict: Verdict, status: str, now: Instant, source: Source | None) -> None:
        under = self._under.pop(ticket, None)
        if under is None:
            return
        if self._counts(under.meant):
            self._tallies[under.place].ended(verdict, now - under.meant)
            self._statuses[status] = self._statuses.get(status, 0) + 1
        if source is not None:
            source.answered(now - self._begin)
