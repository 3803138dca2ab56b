"""Read a journal along while it is written: from the segment before, over new segments, over restarts of the node."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from cotenant.errors import WorldError
from cotenant.format.journal import JournalDamageError, Turn, TurnReader

_BUFFER_BYTES = 1 << 16


class _OpenSegment:
    """One file of the journal, and how far it was read."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.reader = TurnReader(file.read)
        self.is_damaged = False

    @property
    def torn_bytes(self) -> int:
        return self.reader.torn_bytes

    def is_same(self, path: Path) -> bool:
        """Whether this is still the file of that name; one that is gone has none in its place yet."""
        try:
            found = path.stat()
        except FileNotFoundError:
            return True
        own = _stat(self.file)
        return (found.st_dev, found.st_ino) == own

    def turns(self) -> Iterator[Turn]:
        """What was added since the last time; what is not whole yet is read again then."""
        if self.is_damaged:
            return
        self.file.seek(self.reader.sound_bytes)
        yield from self.reader


class JournalTail:
    """`turns()` gives what is there and not read yet; ask again for what came meanwhile.

    The writer appends, and begins a segment by renaming a file over the old one: whoever has the old one open reads it
    to its end and then opens the new one. Only one segment before the present one is kept, so a reader that sleeps
    through two of them misses turns; the head of a segment says which turn it is, and the chronicle sees that.
    """

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        """Look at nothing yet; `say` gets a sentence for what cannot be read."""
        self._path = path
        self._say = say
        self._segment: _OpenSegment | None = None
        self._is_new = True

    def turns(self) -> Iterator[Turn]:
        """Every sound turn that was not given before, oldest first."""
        if self._is_new:
            self._is_new = False
            yield from self._before()
        while True:
            if self._segment is None:
                self._segment = self._open(self._path)
                if self._segment is None:
                    return
            # Asked before reading: what was the journal's file then is complete when a new one has taken its place.
            is_last = self._segment.is_same(self._path)
            yield from self._read(self._segment)
            if is_last:
                return
            self._segment.file.close()
            self._segment = None

    @property
    def torn_bytes(self) -> int:
        """How much at the end is no whole turn: being written at this instant, or what a writer died over."""
        return 0 if self._segment is None else self._segment.torn_bytes

    @property
    def exists(self) -> bool:
        """Whether there is a journal at all."""
        return self._segment is not None

    def close(self) -> None:
        """Let go of the file."""
        if self._segment is not None:
            self._segment.file.close()
            self._segment = None

    def _before(self) -> Iterator[Turn]:
        """The segment before, then the present one is left open; a new one may begin between the two steps."""
        kept = self._path.with_name(self._path.name + ".1")
        self._segment = self._open(self._path)
        older = None if self._segment is None else self._open(kept)
        if older is None:
            return
        with older.file:
            if self._segment is not None and _stat(older.file) == _stat(self._segment.file):
                return  # it has just become the one before: `turns` reads it, and then the new one
            yield from self._read(older)

    def _read(self, segment: _OpenSegment) -> Iterator[Turn]:
        try:
            yield from segment.turns()
        except JournalDamageError as damage:
            segment.is_damaged = True
            self._say(f"the journal {self._path} is {damage}; what follows there cannot be read")

    def _open(self, path: Path) -> _OpenSegment | None:
        try:
            return _OpenSegment(path.open("rb", buffering=_BUFFER_BYTES))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise WorldError(
                f"cannot read the journal {path}: {error.strerror}; ask the user that runs the node"
            ) from None


def _stat(file: BinaryIO) -> tuple[int, int]:
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino
