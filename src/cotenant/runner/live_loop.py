"""The event loop under the real clock: one thread that waits for descriptors and instants, and delivers events."""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from cotenant.runner.ports import Clock
from cotenant.units.histogram import Recorder
from cotenant.units.instant import SECOND_NS, Instant

READ: Final = selectors.EVENT_READ
WRITE: Final = selectors.EVENT_WRITE
_LONGEST_WAIT_S: Final = 3600.0

E = TypeVar("E")
E_contra = TypeVar("E_contra", contravariant=True)


class Timer(Protocol):
    """An object that the loop wakes at an instant of its choice."""

    def next_wakeup(self) -> Instant | None:
        """Return when to wake it; None where no wake-up is needed."""
        ...

    def wake(self, now: Instant) -> None:
        """Handle the wake-up; `now` is at or after the requested instant."""
        ...


class TurnHandler(Protocol[E_contra]):
    """The part of a host that a loop needs."""

    def turn(self, event: E_contra, now: Instant) -> Instant | None:
        """Run one turn and return when the machine needs a wake-up event."""
        ...


class IoLoop:
    """Calls the functions that watch a descriptor and the timers that are due, one after the other."""

    def __init__(self, clock: Clock) -> None:
        """Watch nothing yet."""
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._timers: list[Timer] = []
        self._stop: str | None = None
        self._kept: list[object] = []

    def watch(self, descriptor: int, when: int, ready: Callable[[int], None]) -> None:
        """Call `ready(mask)` whenever the descriptor is readable or writable, as `when` selects."""
        if descriptor in self._selector.get_map():
            self._selector.modify(descriptor, when, ready)
        else:
            self._selector.register(descriptor, when, ready)

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor."""
        self._selector.unregister(descriptor)

    def keep(self, *objects: object) -> None:
        """Keep references to objects that must live as long as the loop."""
        self._kept += objects

    def add_timer(self, timer: Timer) -> None:
        """Wake this timer whenever it is due."""
        self._timers.append(timer)

    def stop(self, reason: str) -> None:
        """Return from `run` after the present step."""
        self._stop = reason

    def run(self) -> str:
        """Run until `stop` is called and return its reason."""
        while self._stop is None:
            # The clock is read before the select: input that arrived in time is then handled before its deadline,
            # even if this thread got no processor meanwhile.
            now = self._clock.now()
            for key, mask in self._selector.select(self._timeout_s()):
                if key.fd in self._selector.get_map():  # an earlier step of this round may have closed it
                    key.data(mask)
            for timer in self._timers:
                due = timer.next_wakeup()
                if due is not None and now >= due:
                    timer.wake(now)
        return self._stop

    def close(self) -> None:
        """Close the selector."""
        self._selector.close()

    def _timeout_s(self) -> float:
        wakeups = [timer.next_wakeup() for timer in self._timers]
        due = [wakeup for wakeup in wakeups if wakeup is not None]
        if not due:
            return _LONGEST_WAIT_S
        return min(max(0.0, (min(due) - self._clock.now()) / SECOND_NS), _LONGEST_WAIT_S)


class LiveLoop(IoLoop, Generic[E]):
    """Delivers events to a host in the order of their arrival, and never inside another turn."""

    def __init__(self, clock: Clock, wakeup: E) -> None:
        """`wakeup` is the event that the machine receives at the instant for which it asked."""
        super().__init__(clock)
        self._wakeup = wakeup
        self._queue: deque[E] = deque()
        self._host: TurnHandler[E] | None = None
        self._due: Instant | None = None
        self._is_busy = False
        self.has_failed = False
        """Whether a turn raised an exception: the state of the host may be incomplete."""
        self.turn_ns = Recorder()
        self.add_timer(self)

    def bind(self, host: TurnHandler[E]) -> None:
        """Deliver events to this host."""
        self._host = host

    def post(self, event: E) -> None:
        """Deliver an event now, or after the turn that is running; a loop that was stopped delivers no more events."""
        self._queue.append(event)
        if self._is_busy or self._host is None:
            return
        self._is_busy = True
        try:
            while self._queue and self._stop is None:
                now = self._clock.now()
                self._due = self._host.turn(self._queue.popleft(), now)
                self.turn_ns.record(self._clock.now() - now)
        except BaseException:
            self.has_failed = True
            raise
        finally:
            self._is_busy = False

    def next_wakeup(self) -> Instant | None:
        """Return when the machine needs a wake-up event."""
        return self._due

    def wake(self, now: Instant) -> None:
        """Deliver the wake-up event."""
        del now
        self.post(self._wakeup)


def stop_on_signals(loop: IoLoop, stop: Callable[[str], None], reload: Callable[[], object] | None = None) -> None:
    """Call `stop` in the loop with the reason when SIGTERM or SIGINT arrives, and `reload` when SIGHUP arrives."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, *(() if reload is None else (signal.SIGHUP,))):
        signal.signal(number, lambda *_: None)

    def read_signals(mask: int) -> None:
        del mask
        with contextlib.suppress(BlockingIOError):
            for number in reader.recv(64):
                if reload is not None and number == signal.SIGHUP:
                    reload()
                    continue
                stop(f"received {signal.Signals(number).name}")

    loop.watch(reader.fileno(), READ, read_signals)
    loop.keep(reader, writer)
