"""Writes diurnal profiles every few minutes, soon after a departure, and at the node's end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from cotenant.node.daemon.diurnal_file import DiurnalFile
from cotenant.node.state.diurnal import DiurnalProfiles
from cotenant.runner.background import TaskResult
from cotenant.runner.clock import wall_clock_offset_ns
from cotenant.units.instant import SECOND_NS, Duration, Instant

EVERY_NS: Final = 300 * SECOND_NS
"""The period of writes: a killed node loses at most the observations of this time."""
SOON_NS: Final = 10 * SECOND_NS
"""Departures within this time are written together."""


class DiurnalSource(Protocol):
    """The source of the observations to keep."""

    @property
    def is_watching(self) -> bool:
        """Return whether there are new observations."""
        ...

    def remember(self) -> None:
        """Add the observations up to now to the profiles."""
        ...


class TaskRunner(Protocol):
    """Runs work in the background."""

    def submit(self, call: Callable[[], None], done: Callable[[TaskResult[None]], None]) -> None:
        """Run `call` in the background, then `done` in the loop."""
        ...


class DiurnalSaver:
    """A timer of the loop that writes in the background, so that no window is delayed."""

    def __init__(
        self,
        file: DiurnalFile,
        profiles: DiurnalProfiles,
        learner: DiurnalSource,
        sender: TaskRunner,
        report: Callable[[str], None],
        clock_offset: Callable[[], Duration] = wall_clock_offset_ns,
    ) -> None:
        """Start with the profiles of the file; `clock_offset` converts instants of windows to wall-clock time."""
        self._file = file
        self._profiles = profiles
        self._learner = learner
        self._sender = sender
        self._report = report
        self._clock_offset = clock_offset
        self._last_save: Instant = 0
        self._saved_changes = profiles.changes
        self._is_writing = False
        self._is_failing = False

    def next_wakeup(self) -> Instant | None:
        """Return an early instant after a departure, else a periodic one while a tenant is observed."""
        if self._is_writing:
            return None
        if self._profiles.changes != self._saved_changes and not self._is_failing:
            return self._last_save + SOON_NS
        return self._last_save + EVERY_NS if self._is_failing or self._learner.is_watching else None

    def wake(self, now: Instant) -> None:
        """Write the file; the wall clock may have been set, or the machine suspended, since the last time."""
        self._last_save = now
        self._profiles.ahead_ns = self._clock_offset()
        self._learner.remember()
        changes, known = self._profiles.changes, self._profiles.profiles()
        if changes == self._saved_changes:
            return

        def on_written(outcome: TaskResult[None]) -> None:
            self._is_writing = False
            if outcome.error is None:
                self._saved_changes, self._is_failing = changes, False
            else:
                self._report_failure(outcome.error)

        self._is_writing = True
        self._sender.submit(lambda: self._file.write(known, changes), on_written)

    def close(self) -> None:
        """Write the file at once, since the node ends."""
        self._learner.remember()
        if self._profiles.changes == self._saved_changes:
            return
        try:
            self._file.write(self._profiles.profiles(), self._profiles.changes)
        except (OSError, ValueError) as error:  # the rest of the node still has to be closed
            self._report_failure(error)

    def _report_failure(self, error: Exception) -> None:
        """Report a failure once until a write succeeds: a disk may stay full for hours."""
        if not self._is_failing:
            why = getattr(error, "strerror", None) or error
            self._report(f"diurnal profiles could not be written ({why}); the node will retry")
        self._is_failing = True
