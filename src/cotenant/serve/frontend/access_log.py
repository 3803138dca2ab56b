"""Access log: one JSON line per request, formatted and written by a thread of its own."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from io import FileIO
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from cotenant.units.instant import Duration

STDERR: Final = "-"
_WRITE_INTERVAL_S: Final = 0.25
_RECORDS_LIMIT: Final = 1 << 16
"""Records that may wait for the thread; further ones are counted and dropped, so that no request waits for a disk."""


class AccessRecord(NamedTuple):
    """One answered request."""

    unix_ns: int
    client: str
    protocol: str
    method: str
    target: str
    status: int
    response_bytes: int
    took_ns: Duration


class AccessLog:
    """Writes records to a file, or to standard error."""

    def __init__(self, path: str) -> None:
        """Open the file to append; raise OSError if that fails."""
        self._path = path
        self._records: deque[AccessRecord] = deque()
        self._dropped = 0
        self._encode = msgspec.json.Encoder().encode
        self._file = None if path == STDERR else _open(path)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
        self._thread.start()

    def add(self, record: AccessRecord) -> None:
        """Queue a record; called on the event loop's thread."""
        if len(self._records) >= _RECORDS_LIMIT:
            self._dropped += 1
        else:
            self._records.append(record)

    def close(self) -> None:
        """Write what is queued and stop the thread."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_WRITE_INTERVAL_S):
            self._write()
        self._write()

    def _write(self) -> None:
        lines = []
        while self._records:
            unix_ns, client, protocol, method, target, status, response_bytes, took_ns = self._records.popleft()
            fields = {
                "time": round(unix_ns / 1e9, 6),
                "client": client,
                "protocol": protocol,
                "method": method,
                "target": target,
                "status": status,
                "bytes": response_bytes,
                "seconds": round(took_ns / 1e9, 6),
            }
            lines.append(self._encode(fields) + b"\n")
        if self._dropped:
            lines.append(self._encode({"dropped": self._dropped}) + b"\n")
            self._dropped = 0
        if not lines:
            return
        try:
            self._open_again_if_moved()
            if self._file is None:
                sys.stderr.write(b"".join(lines).decode())
                sys.stderr.flush()
            else:
                self._file.write(b"".join(lines))
        except OSError:  # a full disk must not stop the server; later records may be written again
            self._dropped += len(lines)

    def _open_again_if_moved(self) -> None:
        """Open the file again if a tool such as logrotate moved it."""
        if self._file is None:
            return
        try:
            current = Path(self._path).stat()
        except FileNotFoundError:
            current = None
        opened = os.fstat(self._file.fileno())
        if current is None or (current.st_dev, current.st_ino) != (opened.st_dev, opened.st_ino):
            self._file.close()
            self._file = _open(self._path)


def _open(path: str) -> FileIO:
    return FileIO(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640), "ab")
