"""When is kept what is known of programs' days? Every few minutes, soon after somebody left, and at the node's end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from cotenant.domain.instant import SECOND_NS, Duration, Instant
from cotenant.live.clock import wall_ahead_ns
from cotenant.live.days import DaysFile
from cotenant.live.errand import Outcome
from cotenant.machine.days import Days

EVERY_NS: Final = 300 * SECOND_NS
"""A node that is killed forgets no more than this."""
SOON_NS: Final = 10 * SECOND_NS
"""Those who leave together are written down together."""


class Learner(Protocol):
    """Who sees what is to be kept."""

    @property
    def is_watching(self) -> bool:
        """Whether anything new is seen at all."""
        ...

    def remember(self) -> None:
        """Take what was seen up to now into the days."""
        ...


class Sender(Protocol):
    """Who has it done beside the loop."""

    def send(self, deed: Callable[[], None], told: Callable[[Outcome[None]], None]) -> None:
        """Have this done, and say so in the loop."""
        ...


class DaysKeeper:
    """Woken by the loop; nothing of it is in the way of a window."""

    def __init__(
        self,
        file: DaysFile,
        days: Days,
        learner: Learner,
        sender: Sender,
        say: Callable[[str], None],
        ahead: Callable[[], Duration] = wall_ahead_ns,
    ) -> None:
        """What the days begin with is in the file; `ahead` leads from the instants of windows to the wall clock's."""
        self._file = file
        self._days = days
        self._learner = learner
        self._sender = sender
        self._say = say
        self._ahead = ahead
        self._last: Instant = 0
        self._kept = days.changes
        self._is_under_way = False
        self._is_failing = False

    def next_wakeup(self) -> Instant | None:
        """Soon, if somebody left; else from time to time, while anybody is looked at."""
        if self._is_under_way:
            return None
        if self._days.changes != self._kept and not self._is_failing:
            return self._last + SOON_NS
        return self._last + EVERY_NS if self._is_failing or self._learner.is_watching else None

    def wake(self, now: Instant) -> None:
        """Have the file written; the wall clock may have been set, or the machine may have slept, since last time."""
        self._last = now
        self._days.ahead_ns = self._ahead()
        self._learner.remember()
        changes, known = self._days.changes, self._days.known()
        if changes == self._kept:
            return

        def told(outcome: Outcome[None]) -> None:
            self._is_under_way = False
            if outcome.error is None:
                self._kept, self._is_failing = changes, False
            else:
                self._complain(outcome.error)

        self._is_under_way = True
        self._sender.send(lambda: self._file.write(known, changes), told)

    def close(self) -> None:
        """The node ends: write it here and now, for nobody waits any more."""
        self._learner.remember()
        if self._days.changes == self._kept:
            return
        try:
            self._file.write(self._days.known(), self._days.changes)
        except (OSError, ValueError) as error:  # the rest of the node still has to be closed
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        """Once, until it is well again: a full disk stays full for hours."""
        if not self._is_failing:
            why = getattr(error, "strerror", None) or error
            self._say(f"what is known of the times of day could not be kept ({why}); it is tried again")
        self._is_failing = True
