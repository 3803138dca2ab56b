"""`cotenant events`: the events of a node from its journal, whether the node runs or not."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import msgspec

from cotenant.errors import WorldError
from cotenant.node.client.journal_tail import JournalTail
from cotenant.node.decision_log import line_of, record_of
from cotenant.node.directories import Directories
from cotenant.node.journal import NodeTurn
from cotenant.node.model.log_event import LogEvent
from cotenant.node.state.event_log import EventLog
from cotenant.runner.clock import local_time, pause, rfc3339, stored_clock_offset, unix_ns

POLL_S = 0.2
"""Interval of checks for new turns in the journal."""


class EventFilter(msgspec.Struct, frozen=True):
    """The events to show; the default is all events."""

    tenant: str = ""
    gpu: int | None = None
    since_ns: int | None = None
    """Maximum age of an event; None: any age."""

    def matches(self, log_event: LogEvent, earliest_unix_ns: int) -> bool:
        """Return whether an event is to be shown; an event of unknown time is shown."""
        return (
            self.tenant in ("", log_event.tenant)
            and self.gpu in (None, log_event.gpu)
            and not 0 < log_event.unix_ns < earliest_unix_ns
        )


def history(directories: Directories, report: Callable[[str], None]) -> Iterator[tuple[NodeTurn, list[LogEvent]]]:
    """Yield every recorded turn and its events, oldest first; raise `WorldError` without a journal."""
    reader = _Reader(directories, report)
    try:
        yield from reader.new_turns()
        reader.report_incomplete()
    finally:
        reader.close()


def read_events(
    directories: Directories, event_filter: EventFilter, report: Callable[[str], None], *, follow: bool
) -> Generator[LogEvent]:
    """Yield the events that the filter matches; with `follow`, continue with new events."""
    earliest = 0 if event_filter.since_ns is None else unix_ns() - event_filter.since_ns
    reader = _Reader(directories, report, required=not follow)
    try:
        while True:
            for _, log_events in reader.new_turns():
                yield from (log_event for log_event in log_events if event_filter.matches(log_event, earliest))
            if not follow:
                reader.report_incomplete()
                return
            pause(POLL_S)
    finally:
        reader.close()


class _Reader:
    """A journal and the event log made from it."""

    def __init__(self, directories: Directories, report: Callable[[str], None], *, required: bool = True) -> None:
        self._directories = directories
        self._report = report
        self._required = required
        self._tail = JournalTail(directories.journal, report)
        self._event_log = EventLog(stored_clock_offset(directories.clock))

    def new_turns(self) -> Iterator[tuple[NodeTurn, list[LogEvent]]]:
        for turn in self._tail.turns():
            yield turn, self._event_log.record(turn.now, turn.event, turn.actions)
        if self._required and not self._tail.exists:
            raise WorldError(f"no node has left a journal in {self._directories.state}; start one with: cotenant node")

    def report_incomplete(self) -> None:
        """Report an incomplete turn at the end; while a node runs, it may be the turn that is being written."""
        if self._tail.torn_bytes:
            self._report(f"the journal ends in {self._tail.torn_bytes} bytes of an incomplete turn, which is not shown")

    def close(self) -> None:
        self._tail.close()


def event_line(log_event: LogEvent) -> str:
    """Return an event as a line of text."""
    return line_of(log_event, local_time(log_event.unix_ns))


def event_json(log_event: LogEvent) -> dict[str, object]:
    """Return an event as a JSON object, as in the node's log."""
    return record_of(log_event, rfc3339(log_event.unix_ns))
