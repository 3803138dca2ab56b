"""What happens next, when time is real? One thread: descriptors that are ready, instants that have come."""

from __future__ import annotations

import selectors
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from cotenant.domain.event import Event, Woke
from cotenant.domain.histogram import Recorder
from cotenant.domain.instant import SECOND_NS, Instant
from cotenant.port import Clock

READ: Final = selectors.EVENT_READ
WRITE: Final = selectors.EVENT_WRITE
_LONGEST_WAIT_S: Final = 3600.0

E = TypeVar("E")
E_contra = TypeVar("E_contra", contravariant=True)


class Timed(Protocol):
    """Something that wants to be woken."""

    def next_wakeup(self) -> Instant | None:
        """When, if at all."""
        ...

    def wake(self, now: Instant) -> None:
        """It is time, or past it."""
        ...


class Turns(Protocol[E_contra]):
    """A host, as far as a loop knows it."""

    def turn(self, event: E_contra, now: Instant) -> Instant | None:
        """One turn; returns when the machine wants to be woken."""
        ...


class ReadyLoop:
    """Calls whoever watches a descriptor or asked for an instant, one after the other."""

    def __init__(self, clock: Clock) -> None:
        """Watch nothing yet."""
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._timed: list[Timed] = []
        self._stop: str | None = None
        self._kept: list[object] = []

    def watch(self, descriptor: int, when: int, ready: Callable[[int], None]) -> None:
        """Call `ready(mask)` whenever the descriptor can be read or written, as `when` says."""
        if descriptor in self._selector.get_map():
            self._selector.modify(descriptor, when, ready)
        else:
            self._selector.register(descriptor, when, ready)

    def forget(self, descriptor: int) -> None:
        """Watch it no more."""
        self._selector.unregister(descriptor)

    def keep(self, *things: object) -> None:
        """Hold on to what must live as long as the loop does."""
        self._kept += things

    def add_timed(self, timed: Timed) -> None:
        """Wake it when it asks to be."""
        self._timed.append(timed)

    def stop(self, reason: str) -> None:
        """Leave `run` after the present step."""
        self._stop = reason

    def run(self) -> str:
        """Go on until stopped; returns the reason."""
        while self._stop is None:
            # Before the look, not after it: what came in time is seen before its deadline, though we got no processor.
            now = self._clock.now()
            for key, mask in self._selector.select(self._patience()):
                if key.fd in self._selector.get_map():  # an earlier step of this round may have closed it
                    key.data(mask)
            for timed in self._timed:
                due = timed.next_wakeup()
                if due is not None and now >= due:
                    timed.wake(now)
        return self._stop

    def close(self) -> None:
        """Let go of the selector."""
        self._selector.close()

    def _patience(self) -> float:
        wakes = [timed.next_wakeup() for timed in self._timed]
        due = [wake for wake in wakes if wake is not None]
        if not due:
            return _LONGEST_WAIT_S
        return min(max(0.0, (min(due) - self._clock.now()) / SECOND_NS), _LONGEST_WAIT_S)


class EventLoop(ReadyLoop, Generic[E]):
    """Delivers events to a host in the order they came, and never inside another turn."""

    def __init__(self, clock: Clock, woke: E) -> None:
        """`woke` is the event that tells the machine that its instant has come."""
        super().__init__(clock)
        self._woke = woke
        self._queue: deque[E] = deque()
        self._host: Turns[E] | None = None
        self._wake: Instant | None = None
        self._busy = False
        self.turn_ns = Recorder()
        self.add_timed(self)

    def bind(self, host: Turns[E]) -> None:
        """Drive this host."""
        self._host = host

    def post(self, event: E) -> None:
        """Deliver an event now, or right after the turn that is going on; once stopped, the host hears nothing more."""
        self._queue.append(event)
        if self._busy or self._host is None:
            return
        self._busy = True
        try:
            while self._queue and self._stop is None:
                now = self._clock.now()
                self._wake = self._host.turn(self._queue.popleft(), now)
                self.turn_ns.record(self._clock.now() - now)
        finally:
            self._busy = False

    def next_wakeup(self) -> Instant | None:
        """When the machine wants to be woken."""
        return self._wake

    def wake(self, now: Instant) -> None:
        """Tell the machine that its instant has come."""
        del now
        self.post(self._woke)


class LiveLoop(EventLoop[Event]):
    """Drives a node."""

    def __init__(self, clock: Clock) -> None:
        """Watch nothing yet."""
        super().__init__(clock, Woke())
