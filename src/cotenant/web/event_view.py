"""The events of a node and the decisions of its controller, from its journal."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from cotenant.node.client.events import event_json
from cotenant.node.client.journal_tail import JournalTail
from cotenant.node.directories import Directories
from cotenant.node.model.action import SetOnlineShare
from cotenant.node.model.log_event import LogEvent, LogEventKind
from cotenant.node.state.event_log import EventLog
from cotenant.runner.clock import stored_clock_offset

EVENTS_LIMIT: Final = 400
DECISIONS_LIMIT: Final = 600


class EventView:
    """Follows a journal; the latest events stay in memory, so that a page that opens shows them."""

    def __init__(self, directories: Directories) -> None:
        self._directories = directories
        self._tail: JournalTail | None = None
        self._log: EventLog | None = None
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS_LIMIT)
        self._decisions: deque[dict[str, Any]] = deque(maxlen=DECISIONS_LIMIT)
        self._problem = ""

    def read(self) -> dict[str, Any]:
        """Return the latest events and decisions, oldest first."""
        try:
            self._read_new()
            self._problem = ""
        except OSError as error:
            self._problem = f"the journal in {self._directories.state} cannot be read: {error.strerror}"
        return {"events": list(self._events), "decisions": list(self._decisions), "problem": self._problem}

    def _read_new(self) -> None:
        if self._tail is None or self._log is None:
            self._tail = JournalTail(self._directories.journal, lambda _: None)
            self._log = EventLog(stored_clock_offset(self._directories.clock))
        for turn in self._tail.turns():
            changes = iter([action for action in turn.actions if isinstance(action, SetOnlineShare)])
            for event in self._log.record(turn.now, turn.event, turn.actions):
                self._keep(event, next(changes, None) if event.what is LogEventKind.ADJUSTED else None)

    def _keep(self, event: LogEvent, change: SetOnlineShare | None) -> None:
        record = event_json(event)
        record["at_ms"] = event.unix_ns // 1_000_000
        if event.what is LogEventKind.ADJUSTED and change is not None:
            shares = {"online_ppm": change.adjustment.online_ppm, "was_ppm": change.was_ppm}
            self._decisions.append({**record, **shares})
        else:
            self._events.append(record)

    def close(self) -> None:
        """Close the journal."""
        if self._tail is not None:
            self._tail.close()
            self._tail = self._log = None
            self._events.clear()
            self._decisions.clear()
