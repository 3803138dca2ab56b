"""The node's log: one line per event, as text or JSON; it can neither block the node nor fill a disk.

A line is written only if it fits at once, since a full pipe would otherwise block the node. Lost lines are counted and
reported when writing works again. In systemd's journal, which has its own time and priority of each line, a line begins
with its priority instead of a time. The log of a node that was started in the background is a file of the node: it is
renamed at `ROTATE_BYTES`, and one older file is kept.
"""

from __future__ import annotations

import os
import select
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from cotenant.node.daemon.systemd import PRIORITIES, is_journal_stream
from cotenant.node.decision_log import line_of, printable, record_of
from cotenant.node.model.log_event import LogEvent, LogLevel
from cotenant.runner.clock import local_time, rfc3339, unix_ns
from cotenant.runner.ports import Clock
from cotenant.units.instant import SECOND_NS, Instant

ROTATE_BYTES: Final = 1 << 20
DEFECT_NS: Final = 60 * SECOND_NS
"""The shortest time between two lines about the same defect."""
_STANDARD_ERROR: Final = 2
_LINE_LIMIT_BYTES: Final = select.PIPE_BUF
"""A pipe that is writable accepts this many bytes at once."""


class NodeLog:
    """Writes to a descriptor; `own_file` is the log file that is rotated if the descriptor refers to it."""

    def __init__(self, form: str, own_file: Path | None = None, descriptor: int = _STANDARD_ERROR) -> None:
        """`form` is "text" or "json"."""
        self.set_form(form)
        self._own_file = own_file
        self._descriptor = descriptor
        self._is_journal = is_journal_stream(descriptor, os.environ)
        self.dropped = 0
        self._unreported = 0
        self._is_torn = False  # whether the last line in a file is incomplete

    def set_form(self, form: str) -> None:
        """Write "text" or "json" from now on."""
        self._is_json = form == "json"

    def report(self, text: str) -> None:
        """Write a message that belongs to no turn."""
        self._write(self._encoded(text))

    def write_event(self, log_event: LogEvent) -> None:
        """Write an event."""
        if self._is_json:
            line = msgspec.json.encode(record_of(log_event, rfc3339(log_event.unix_ns)))
            self._write(self._prefix(log_event.level) + line)
        elif self._is_journal:
            line = f"{log_event.text} [turn {log_event.turn}]".encode(errors="replace")
            self._write(self._prefix(log_event.level) + line)
        else:
            text = line_of(log_event, local_time(log_event.unix_ns))
            self._write(f"cotenant: {text}".encode(errors="replace"))

    def _prefix(self, level: LogLevel) -> bytes:
        return f"<{PRIORITIES[level.value]}>".encode() if self._is_journal else b""

    def _encoded(self, text: str) -> bytes:
        if not self._is_json:
            prefix = self._prefix(LogLevel.INFO) or b"cotenant: "
            return prefix + text.encode(errors="replace")
        record = {"ts": rfc3339(unix_ns()), "level": "info", "event": "message", "tenant": "", "gpu": None}
        return self._prefix(LogLevel.INFO) + msgspec.json.encode({**record, "turn": 0, "why": "", "text": text})

    def _write(self, line: bytes) -> None:
        if self._unreported and self._try_write(self._encoded(f"{self._unreported} lines of this log were lost")):
            self._unreported = 0
        if self._unreported or not self._try_write(line):
            self._unreported += 1
            self.dropped += 1
        self._rotate()

    def _try_write(self, line: bytes) -> bool:
        # A full disk may take the first part of a line; the next line then begins on a line of its own.
        data = (b"\n" if self._is_torn else b"") + line[: _LINE_LIMIT_BYTES - 2] + b"\n"
        poller = select.poll()
        poller.register(self._descriptor, select.POLLOUT)
        try:
            ready = poller.poll(0)
            if not ready or not ready[0][1] & select.POLLOUT:
                return False
            written = os.write(self._descriptor, data)
            self._is_torn = written < len(data) and (written > 0 or self._is_torn)
            return written == len(data)
        except OSError:  # a full disk or no reader; the journal has the same events
            return False

    def _rotate(self) -> None:
        """Rotate the node's own file; a file to which the user redirected the output is left alone."""
        if self._own_file is None:
            return
        try:
            open_stat, path_stat = os.fstat(self._descriptor), self._own_file.stat()
            if open_stat.st_size <= ROTATE_BYTES or not os.path.samestat(open_stat, path_stat):
                return
            self._own_file.replace(self._own_file.with_name(self._own_file.name + ".1"))
            new_file = os.open(self._own_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            for descriptor in {self._descriptor, *_standard_outputs_of(open_stat)}:
                os.dup2(new_file, descriptor)
            os.close(new_file)
        except OSError:
            return  # the file keeps growing; the next line tries again


class DefectLog:
    """Logs exceptions that show a defect of the node, each place in the code at most once per `DEFECT_NS`."""

    def __init__(self, report: Callable[[str], None], clock: Clock) -> None:
        """`report` writes a line of the log."""
        self._report = report
        self._clock = clock
        self._due: dict[str, Instant] = {}

    def __call__(self, error: Exception) -> None:
        """Log an exception: peers may repeat what causes it at any rate."""
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place, now = f"{Path(frame.filename).name}:{frame.lineno}", self._clock.now()
        if now >= self._due.get(place, now):
            self._due[place] = now + DEFECT_NS
            text = f"{type(error).__name__}: {error} ({place} in {frame.name})"
            self._report(printable(f"a request failed because of a defect of the node; please report it: {text}"))


def _standard_outputs_of(file: os.stat_result) -> list[int]:
    """Return the standard outputs that refer to this file."""
    outputs = []
    for descriptor in (1, 2):
        try:
            stat = os.fstat(descriptor)
        except OSError:
            continue
        if (stat.st_dev, stat.st_ino) == (file.st_dev, file.st_ino):
            outputs.append(descriptor)
    return outputs
