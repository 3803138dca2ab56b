"""The journal on disk. A turn is written to the kernel before its actions are carried out, so SIGKILL loses nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Generic

from cotenant.errors import SetupError, WorldError
from cotenant.runner.atomic_file import sync_directory
from cotenant.runner.journal import (
    BEGINNING_BYTES,
    MAGIC,
    AnyTurn,
    JournalDamageError,
    JournalReader,
    ReadBytes,
    Segment,
    encode_turn,
)
from cotenant.units.instant import Instant
from cotenant.units.value import Value

_MODE: Final = 0o600


class JournalUnavailableError(WorldError):
    """The journal cannot be written now; it holds all earlier turns and nothing of the present one."""

    def __init__(self, message: str, reason: str) -> None:
        """`reason` is the cause in a few words, as the kernel names it."""
        self.reason = reason
        super().__init__(message)


class FileJournal:
    """Appends to one file; a full segment is renamed to `NAME.1`, which replaces the segment before it.

    The file is not synced to the disk: a crash of the machine also ends the tenants that the lost turns concern.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        """Open for appending; the file must have no torn tail (see `Recovery`)."""
        self._path = path
        self._limit_bytes = limit_bytes
        self._is_torn = False  # whether an incomplete turn must be removed before the next one
        self._file = self._open(path)
        self._segment = Segment(limit_bytes)
        with path.open("rb") as file:
            self._segment.resume(os.fstat(self._file).st_size, file.read(BEGINNING_BYTES))
        if self._segment.size_bytes == 0:
            self._write(MAGIC)
            self._segment.size_bytes = len(MAGIC)

    @property
    def size_bytes(self) -> int:
        """Return the size of the present segment."""
        return self._segment.size_bytes

    @property
    def is_present(self) -> bool:
        """Return whether the open file is still the one at its path, neither deleted nor replaced."""
        try:
            return os.path.samestat(os.fstat(self._file), self._path.stat())
        except OSError:
            return False

    def append(self, now: Instant, event: Value, actions: Sequence[Value]) -> bool:
        """Append one turn; return True when the next segment is due."""
        return self.append_encoded(encode_turn(now, event, actions))

    def append_encoded(self, data: bytes) -> bool:
        """Append turns of `encode_turn`, all or none; return True when the next segment is due."""
        self._write(data)
        return self._segment.grow(len(data))

    def begin_segment(self, now: Instant, head: Value) -> None:
        """Begin a new segment; a rename makes it the journal once its head is written."""
        self.replace(encode_turn(now, head, []))

    def replace(self, turns: bytes) -> None:
        """Begin a new segment with these turns of `encode_turn`; if it fails, the present segment stays in use."""
        new_path = self._path.with_name(self._path.name + ".new")
        try:
            new_path.unlink(missing_ok=True)
            file = os.open(new_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
            try:
                self._write_all(file, MAGIC + turns)
                os.fsync(file)
                self._exchange(new_path)
            except OSError:
                os.close(file)
                with contextlib.suppress(OSError):
                    new_path.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise JournalUnavailableError(
                f"cannot begin a new segment of {self._path}: {error.strerror}; repair its directory and restart",
                error.strerror or str(error),
            ) from None
        os.close(self._file)
        self._file, self._segment, self._is_torn = file, Segment(self._limit_bytes), False
        data = MAGIC + turns
        self._segment.resume(len(data), data[:BEGINNING_BYTES])

    def _exchange(self, new_path: Path) -> None:
        """Keep the present segment as the previous one, and make the new file the journal."""
        previous = self._path.with_name(self._path.name + ".1")
        if self._path.exists():  # it may have been deleted; the segment before it then stays
            previous.unlink(missing_ok=True)
            os.link(self._path, previous)
        new_path.rename(self._path)

    def sync(self) -> None:
        """Write the file to the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _open(self, path: Path) -> int:
        try:
            return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
        except OSError as error:
            raise WorldError(f"cannot open the journal {path}: {error.strerror}; repair its directory") from None

    def _write(self, data: bytes) -> None:
        try:
            if self._is_torn:
                os.ftruncate(self._file, self._segment.size_bytes)
                self._is_torn = False
            self._write_all(self._file, data)
        except OSError as error:
            self._remove_incomplete_turn()
            # No action may be carried out that the journal does not hold: the caller must not continue with this turn.
            raise JournalUnavailableError(
                f"cannot write the journal {self._path}: {error.strerror}; free space and restart",
                error.strerror or str(error),
            ) from None

    def _write_all(self, file: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]

    def _remove_incomplete_turn(self) -> None:
        """Remove what was written of a turn; if that fails as well, the next write does it first."""
        try:
            os.ftruncate(self._file, self._segment.size_bytes)
        except OSError:
            self._is_torn = True


class Recovery(Generic[AnyTurn]):
    """Reads a journal at start: call `turns()` first, then `truncate_torn_tail()` or `restart_from()`."""

    def __init__(self, path: Path, reader: Callable[[ReadBytes], JournalReader[AnyTurn]]) -> None:
        """Read nothing yet; `reader` decodes the turns of this kind of journal."""
        self._path = path
        self._make_reader: Callable[[ReadBytes], JournalReader[AnyTurn]] = reader
        self._reader: JournalReader[AnyTurn] | None = None
        self._damage: JournalDamageError | None = None
        self.last_instant: Instant = 0

    def turns(self) -> Iterator[AnyTurn]:
        """Yield every readable turn; damage ends the iteration and is then described by `damage`."""
        try:
            file = self._path.open("rb", buffering=1 << 16)
        except FileNotFoundError:
            return
        except OSError as error:
            raise SetupError(
                f"cannot read the journal {self._path}: {error.strerror}; correct its permissions"
            ) from None
        with file:
            self._reader = self._make_reader(file.read)
            try:
                for turn in self._reader:
                    self.last_instant = turn.now
                    yield turn
            except JournalDamageError as damage:
                self._damage = damage

    @property
    def damage(self) -> str:
        """Describe the damage before the last turn; empty where there is none."""
        return "" if self._damage is None else f"was {self._damage}"

    def truncate_torn_tail(self) -> str:
        """Remove a torn tail; return a sentence that says so, empty where there was none."""
        if self._reader is None or not self._reader.torn_bytes:
            return ""
        os.truncate(self._path, self._reader.sound_bytes)
        return (
            f"the journal {self._path} ended in an incomplete turn of {self._reader.torn_bytes} bytes, which was "
            f"removed; the {self._reader.turns} turns before it are complete"
        )

    def restart_from(self, head: Value, why: str) -> str:
        """Keep the file under another name and replace it by a new journal that begins with this head."""
        kept_as = ""
        if self._path.exists():
            number = 1
            while (damaged_path := self._path.with_name(f"{self._path.name}.damaged-{number}")).exists():
                number += 1
            os.link(self._path, damaged_path)
            kept_as = f"; it is kept as {damaged_path.name}"
        new_path = self._path.with_name(self._path.name + ".new")
        new_path.unlink(missing_ok=True)
        journal = FileJournal(new_path, 1 << 62)
        journal.append(self.last_instant, head, [])
        journal.sync()  # otherwise a power loss could leave an empty file in its place
        journal.close()
        new_path.rename(self._path)
        sync_directory(self._path.parent)
        return f"the journal {self._path} {why}{kept_as}; a new journal begins"
