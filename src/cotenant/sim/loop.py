"""What happens next, when time is only a number? A heap of instants; ties go to whoever was scheduled first."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from cotenant.domain.instant import Instant

_Event = TypeVar("_Event")
_Told_contra = TypeVar("_Told_contra", contravariant=True)


class Wakes(Protocol):
    """A machine, as far as its clock goes."""

    def next_wakeup(self) -> Instant | None:
        """When it wants to be woken, if at all."""
        ...


class Turns(Protocol[_Told_contra]):
    """Any machine's host."""

    @property
    def machine(self) -> Wakes:
        """What it runs."""
        ...

    def turn(self, event: _Told_contra, now: Instant) -> Instant | None:
        """One turn; returns when the machine wants to be woken."""
        ...


class SimLoop:
    """The clock and the order of things. It is its own `Clock`."""

    __slots__ = ("_heap", "_now", "_sequence", "steps")

    def __init__(self, start: Instant = 0) -> None:
        """Begin at an instant, with nothing to do."""
        self._heap: list[tuple[Instant, int, Callable[[Any, Instant], None], Any]] = []
        self._now = start
        self._sequence = 0
        self.steps = 0

    def now(self) -> Instant:
        """The instant of the step being taken."""
        return self._now

    def at(self, when: Instant, do: Callable[[Any, Instant], None], what: Any) -> None:
        """Call `do(what, when)` then; an instant that has passed means now, after what is already due."""
        self._sequence += 1
        when = max(when, self._now)
        heapq.heappush(self._heap, (when, self._sequence, do, what))

    def take(self, most: int) -> int:
        """Take at most so many steps, however long they last; returns how many there were."""
        heap = self._heap
        pop = heapq.heappop
        taken = 0
        while heap and taken < most:
            self._now, _, do, what = pop(heap)
            taken += 1
            do(what, self._now)
        self.steps += taken
        return taken

    def run(self, until: Instant) -> None:
        """Take every step due up to and including `until`; the clock then stands there."""
        heap = self._heap
        pop = heapq.heappop
        steps = 0
        while heap and heap[0][0] <= until:
            when, _, do, what = pop(heap)
            self._now = when
            steps += 1
            do(what, when)
        self.steps += steps
        self._now = max(self._now, until)


class SimDriver(Generic[_Event]):
    """Drives one host by the loop: delivers events and keeps its wake-up in the heap."""

    __slots__ = ("_ended", "_loop", "_wake", "_woke", "host")

    def __init__(self, loop: SimLoop, host: Turns[_Event], woke: _Event) -> None:
        """Bind a host to the loop; `woke` is what its machine is told at the instant that it asked for."""
        self._loop = loop
        self.host = host
        self._woke = woke
        self._wake: Instant | None = None
        self._ended = False

    def deliver(self, event: _Event, now: Instant) -> None:
        """One turn; used as a step of the loop."""
        wake = self.host.turn(event, now)
        if wake is not None and wake != self._wake:
            self._wake = wake
            self._loop.at(wake, self._ring, wake)

    def end(self) -> None:
        """The process is dead: what still waits in the heap rings for nobody."""
        self._ended = True

    def _ring(self, armed: Instant, now: Instant) -> None:
        """A wake-up that was moved meanwhile is stale: it is not the instant that is wanted now."""
        if self._ended or self._wake != armed:
            return
        self._wake = None
        wanted = self.host.machine.next_wakeup()
        if wanted is None:
            return
        if wanted <= now:
            self.deliver(self._woke, now)
        else:
            self._wake = wanted
            self._loop.at(wanted, self._ring, wanted)
