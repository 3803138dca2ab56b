"""Read a journal while it is written: from the previous segment, across new segments and restarts of the node."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from cotenant.errors import SetupError
from cotenant.node.journal import NodeJournalReader, NodeTurn
from cotenant.runner.journal import JournalDamageError

_BUFFER_BYTES = 1 << 16


class _OpenSegment:
    """One file of the journal and the position of the reader."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.reader = NodeJournalReader(file.read)
        self.is_damaged = False

    @property
    def torn_bytes(self) -> int:
        return self.reader.torn_bytes

    def is_same(self, path: Path) -> bool:
        """Return whether this is still the file of that name, or no file has replaced it yet."""
        try:
            stat = path.stat()
        except FileNotFoundError:
            return True
        return (stat.st_dev, stat.st_ino) == _file_id(self.file)

    def turns(self) -> Iterator[NodeTurn]:
        """Yield the turns since the last call; an incomplete turn is read again at the next call."""
        if self.is_damaged:
            return
        self.file.seek(self.reader.sound_bytes)
        yield from self.reader


class JournalTail:
    """Reads a journal while it is written: each call of `turns()` yields the turns since the last call.

    The writer appends, and begins a segment by renaming a file over the old one: a reader that has the old one open
    reads it to its end and then opens the new one. Only one earlier segment is kept, so a reader that sleeps through
    two of them misses turns; the head of a segment has the turn's number, from which the event log detects it.
    """

    def __init__(self, path: Path, report: Callable[[str], None]) -> None:
        """Open nothing yet; `report` receives one sentence for each part that cannot be read."""
        self._path = path
        self._report = report
        self._segment: _OpenSegment | None = None
        self._is_new = True

    def turns(self) -> Iterator[NodeTurn]:
        """Yield every valid turn that was not returned before, oldest first."""
        if self._is_new:
            self._is_new = False
            yield from self._previous_segment()
        while True:
            if self._segment is None:
                self._segment = self._open(self._path)
                if self._segment is None:
                    return
            # Checked before reading: the file is complete once a new one has replaced it.
            is_last = self._segment.is_same(self._path)
            yield from self._read(self._segment)
            if is_last:
                return
            self._segment.file.close()
            self._segment = None

    @property
    def torn_bytes(self) -> int:
        """Return the size of the incomplete turn at the end: being written, or left by a writer that died."""
        return 0 if self._segment is None else self._segment.torn_bytes

    @property
    def exists(self) -> bool:
        """Return whether there is a journal."""
        return self._segment is not None

    def close(self) -> None:
        """Close the file."""
        if self._segment is not None:
            self._segment.file.close()
            self._segment = None

    def _previous_segment(self) -> Iterator[NodeTurn]:
        """Read the previous segment and open the present one; a new one may begin between the two steps."""
        previous_path = self._path.with_name(self._path.name + ".1")
        self._segment = self._open(self._path)
        previous = None if self._segment is None else self._open(previous_path)
        if previous is None:
            return
        with previous.file:
            if self._segment is not None and _file_id(previous.file) == _file_id(self._segment.file):
                return  # it has just become the previous segment: `turns` reads it, then the new one
            yield from self._read(previous)

    def _read(self, segment: _OpenSegment) -> Iterator[NodeTurn]:
        try:
            yield from segment.turns()
        except JournalDamageError as damage:
            segment.is_damaged = True
            self._report(f"the journal {self._path} is {damage}; the rest of it cannot be read")

    def _open(self, path: Path) -> _OpenSegment | None:
        try:
            return _OpenSegment(path.open("rb", buffering=_BUFFER_BYTES))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SetupError(
                f"you may not read the node's journal {path}: {error.strerror}; only the user that runs the node may"
                if isinstance(error, PermissionError)
                else f"cannot read the journal {path}: {error.strerror}; ask the user that runs the node"
            ) from None


def _file_id(file: BinaryIO) -> tuple[int, int]:
    stat = os.fstat(file.fileno())
    return stat.st_dev, stat.st_ino
