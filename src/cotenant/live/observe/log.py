"""The node's log: one line per happening, as text or as JSON, that can neither block the node nor fill a disk.

A line is written only where it fits at once: a reader of our pipe that stopped reading would otherwise stop the node.
What did not fit is counted, and said when there is room again. The log of a node that was started in the background is
our own file: it is renamed at `ROTATE_BYTES`, and of the older ones the last is kept.
"""

from __future__ import annotations

import os
import select
from pathlib import Path
from typing import Final

import msgspec

from cotenant.domain.happening import Happening
from cotenant.format.happening import line_of, record_of
from cotenant.live.clock import rfc3339, time_of_day, unix_ns

ROTATE_BYTES: Final = 1 << 20
_STANDARD_ERROR: Final = 2
_LINE_LIMIT_BYTES: Final = select.PIPE_BUF
"""So much a pipe takes in one piece whenever it says that it takes anything."""


class NodeLog:
    """Writes to a descriptor; `own` is the file that we may rename when it is what the descriptor leads to."""

    def __init__(self, form: str, own: Path | None = None, descriptor: int = _STANDARD_ERROR) -> None:
        """`form` is "text" or "json"."""
        self._is_json = form == "json"
        self._own = own
        self._descriptor = descriptor
        self.dropped = 0
        self._unsaid = 0

    def say(self, text: str) -> None:
        """A sentence that is about no turn."""
        self._write(self._said(text))

    def tell(self, happening: Happening) -> None:
        """One thing that happened."""
        if self._is_json:
            self._write(msgspec.json.encode(record_of(happening, rfc3339(happening.unix_ns))))
        else:
            line = line_of(happening, time_of_day(happening.unix_ns))
            self._write(f"cotenant: {line}".encode(errors="replace"))

    def _said(self, text: str) -> bytes:
        if not self._is_json:
            return f"cotenant: {text}".encode(errors="replace")
        record = {"ts": rfc3339(unix_ns()), "level": "info", "event": "said", "tenant": "", "gpu": None}
        return msgspec.json.encode({**record, "turn": 0, "why": "", "text": text})

    def _write(self, line: bytes) -> None:
        if self._unsaid and self._put(self._said(f"{self._unsaid} lines of this log are lost")):
            self._unsaid = 0
        if self._unsaid or not self._put(line):
            self._unsaid += 1
            self.dropped += 1
        self._rotate()

    def _put(self, line: bytes) -> bool:
        data = line[: _LINE_LIMIT_BYTES - 1] + b"\n"
        poller = select.poll()
        poller.register(self._descriptor, select.POLLOUT)
        try:
            ready = poller.poll(0)
            return bool(ready) and bool(ready[0][1] & select.POLLOUT) and os.write(self._descriptor, data) == len(data)
        except OSError:  # a full disk, or nobody is there to read: the journal has it all
            return False

    def _rotate(self) -> None:
        """Only a file that is ours by name and by descriptor: what somebody else redirected is theirs to rotate."""
        if self._own is None:
            return
        try:
            ours, theirs = os.fstat(self._descriptor), self._own.stat()
            if ours.st_size <= ROTATE_BYTES or (ours.st_dev, ours.st_ino) != (theirs.st_dev, theirs.st_ino):
                return
            self._own.replace(self._own.with_name(self._own.name + ".1"))
            fresh = os.open(self._own, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            for descriptor in {self._descriptor, *_leading_to(ours)}:
                os.dup2(fresh, descriptor)
            os.close(fresh)
        except OSError:
            return  # it grows, and is tried again at the next line


def _leading_to(file: os.stat_result) -> list[int]:
    """Which of the standard outputs lead to this file."""
    found = []
    for descriptor in (1, 2):
        try:
            own = os.fstat(descriptor)
        except OSError:
            continue
        if (own.st_dev, own.st_ino) == (file.st_dev, file.st_ino):
            found.append(descriptor)
    return found
