"""The event loop under a simulated clock: a heap of instants; entries of one instant run in the order of scheduling."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from cotenant.units.instant import Instant

_T = TypeVar("_T")
_Event = TypeVar("_Event")
_Event_contra = TypeVar("_Event_contra", contravariant=True)


class WakingMachine(Protocol):
    """The part of a machine that reports when it needs a wake-up event."""

    def next_wakeup(self) -> Instant | None:
        """Return when the machine needs a wake-up event; None where it needs none."""
        ...


class SimHost(Protocol[_Event_contra]):
    """The part of a host that a simulated loop needs."""

    @property
    def machine(self) -> WakingMachine:
        """Return the machine that the host runs."""
        ...

    def turn(self, event: _Event_contra, now: Instant) -> Instant | None:
        """Run one turn and return when the machine needs a wake-up event."""
        ...


class SimLoop:
    """Runs scheduled calls in order of time; implements `Clock`."""

    __slots__ = ("_heap", "_now", "_sequence", "steps")

    def __init__(self, start: Instant = 0) -> None:
        """Begin at an instant with nothing scheduled."""
        self._heap: list[tuple[Instant, int, Callable[[Any, Instant], None], Any]] = []
        self._now = start
        self._sequence = 0
        self.steps = 0

    def now(self) -> Instant:
        """Return the instant of the present step."""
        return self._now

    def at(self, when: Instant, call: Callable[[_T, Instant], None], argument: _T) -> None:
        """Call `call(argument, when)` at this instant; a past instant means now, after the calls already due."""
        self._sequence += 1
        when = max(when, self._now)
        heapq.heappush(self._heap, (when, self._sequence, call, argument))

    def take(self, limit: int) -> int:
        """Run at most `limit` steps and return how many ran."""
        heap = self._heap
        pop = heapq.heappop
        steps = 0
        while heap and steps < limit:
            self._now, _, call, argument = pop(heap)
            steps += 1
            call(argument, self._now)
        self.steps += steps
        return steps

    def run(self, until: Instant) -> None:
        """Run every step due up to and including `until`, then set the clock to `until`."""
        heap = self._heap
        pop = heapq.heappop
        steps = 0
        while heap and heap[0][0] <= until:
            when, _, call, argument = pop(heap)
            self._now = when
            steps += 1
            call(argument, when)
        self.steps += steps
        self._now = max(self._now, until)


class SimDriver(Generic[_Event]):
    """Delivers events to one host and keeps the host's next wake-up in the loop's heap."""

    __slots__ = ("_due", "_has_ended", "_loop", "_wakeup", "host")

    def __init__(self, loop: SimLoop, host: SimHost[_Event], wakeup: _Event) -> None:
        """Bind a host to the loop; `wakeup` is the event that its machine receives when it asked for a wake-up."""
        self._loop = loop
        self.host = host
        self._wakeup = wakeup
        self._due: Instant | None = None
        self._has_ended = False

    def deliver(self, event: _Event, now: Instant) -> None:
        """Run one turn; a step of the loop."""
        due = self.host.turn(event, now)
        if due is not None and due != self._due:
            self._due = due
            self._loop.at(due, self._wake, due)

    def end(self) -> None:
        """End the simulated process: wake-ups that are still in the heap have no effect."""
        self._has_ended = True

    def _wake(self, scheduled: Instant, now: Instant) -> None:
        """Deliver the wake-up event, unless the machine has changed the instant since this call was scheduled."""
        if self._has_ended or self._due != scheduled:
            return
        self._due = None
        wakeup_ns = self.host.machine.next_wakeup()
        if wakeup_ns is None:
            return
        if wakeup_ns <= now:
            self.deliver(self._wakeup, now)
        else:
            self._due = wakeup_ns
            self._loop.at(wakeup_ns, self._wake, wakeup_ns)
