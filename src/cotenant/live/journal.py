"""The journal on disk. A turn is in the kernel's hands before anybody is told of it, so a SIGKILL loses nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Generic

from cotenant.domain.event import NodeRestored, NodeSettings, NodeStarted
from cotenant.domain.instant import Instant
from cotenant.domain.value import Value
from cotenant.errors import WorldError
from cotenant.format.journal import (
    BEGINNING_BYTES,
    MAGIC,
    AnyTurn,
    JournalDamageError,
    Reader,
    Segment,
    TurnReader,
    encode_turn,
)
from cotenant.live.whole import sync_directory

_MODE: Final = 0o600


class FileJournal:
    """Appends to one file; a full segment is renamed to `NAME.1`, and the one before that is dropped.

    A node's is not synced to the disk: what the machine's own death would lose is about tenants that die with the
    machine. A cluster's is, wherever something was decided: its jobs run on other machines.
    """

    def __init__(self, path: Path, limit_bytes: int, *, is_synced: bool = False) -> None:
        """Open for appending; the file must be sound (see `recover`)."""
        self._path = path
        self._is_synced = is_synced
        self._limit_bytes = limit_bytes
        self._file = self._open(path)
        self._segment = Segment(limit_bytes)
        with path.open("rb") as file:
            self._segment.resume(os.fstat(self._file).st_size, file.read(BEGINNING_BYTES))
        if self._segment.size_bytes == 0:
            self._write(MAGIC)
            self._segment.size_bytes = len(MAGIC)
            if is_synced:
                sync_directory(path.parent)

    @property
    def size_bytes(self) -> int:
        """Of the present segment."""
        return self._segment.size_bytes

    def append(self, now: Instant, event: Value, actions: Sequence[Value]) -> bool:
        """Write one turn."""
        data = encode_turn(now, event, actions)
        self._write(data, is_synced=self._is_synced and bool(actions))
        return self._segment.grow(len(data))

    def begin_segment(self, now: Instant, head: Value) -> None:
        """Start a new segment; it becomes the journal in one step, complete with its head."""
        fresh = self._path.with_name(self._path.name + ".new")
        previous = self._path.with_name(self._path.name + ".1")
        try:
            fresh.unlink(missing_ok=True)
            file = self._open(fresh)
            old, self._file, self._segment = self._file, file, Segment(self._limit_bytes)
            data = MAGIC + encode_turn(now, head, [])
            self._write(data)
            self._segment.grow(len(data))
            os.fsync(file)
            previous.unlink(missing_ok=True)
            os.link(self._path, previous)
            fresh.rename(self._path)
            os.close(old)
            if self._is_synced:
                sync_directory(self._path.parent)  # or a machine that loses power could find the old one in its place
        except OSError as error:
            raise WorldError(
                f"cannot begin a new segment of the journal {self._path}: {error.strerror}; mend its directory, restart"
            ) from None

    def sync(self) -> None:
        """Have all of it on the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)

    def _open(self, path: Path) -> int:
        try:
            return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
        except OSError as error:
            raise WorldError(f"cannot open the journal {path}: {error.strerror}; mend its directory") from None

    def _write(self, data: bytes, *, is_synced: bool = False) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
            if is_synced:
                os.fdatasync(self._file)
        except OSError as error:
            # Nothing may be promised that is not on record, so a node without a journal must not go on.
            raise WorldError(f"cannot write the journal {self._path}: {error.strerror}; free space, restart") from None


class Recovery(Generic[AnyTurn]):
    """Reads a journal for whoever starts: `turns()` first, then `mend()` or `restart_from()` readies the file."""

    def __init__(self, path: Path, reader: Callable[[Callable[[int], bytes]], Reader[AnyTurn]]) -> None:
        """Look at nothing yet; `reader` is a `TurnReader` for a node, a `ClusterReader` for a cluster."""
        self._path = path
        self._reads: Callable[[Callable[[int], bytes]], Reader[AnyTurn]] = reader
        self._reader: Reader[AnyTurn] | None = None
        self._damage: JournalDamageError | None = None
        self.last_instant: Instant = 0

    def turns(self) -> Iterator[AnyTurn]:
        """Every sound turn; damage ends the reading, and `mend` says so."""
        try:
            file = self._path.open("rb", buffering=1 << 16)
        except FileNotFoundError:
            return
        except OSError as error:
            raise WorldError(f"cannot read the journal {self._path}: {error.strerror}; mend its permissions") from None
        with file:
            self._reader = self._reads(file.read)
            try:
                for turn in self._reader:
                    self.last_instant = turn.now
                    yield turn
            except JournalDamageError as damage:
                self._damage = damage

    @property
    def damage(self) -> str:
        """What is wrong before the end of the file, empty for nothing."""
        return "" if self._damage is None else f"was {self._damage}"

    def mend(self) -> str:
        """Cut off a torn tail; returns what was done in a sentence, empty for nothing."""
        if self._reader is None or not self._reader.torn_bytes:
            return ""
        os.truncate(self._path, self._reader.sound_bytes)
        return (
            f"the journal {self._path} ended in a torn turn ({self._reader.torn_bytes} bytes); dropped it, "
            f"{self._reader.turns} turns are sound"
        )

    def restart_from(self, head: Value, why: str) -> str:
        """Keep the file under another name and begin one with this head, which takes its place in one step."""
        aside = ""
        if self._path.exists():
            number = 1
            while (kept := self._path.with_name(f"{self._path.name}.damaged-{number}")).exists():
                number += 1
            os.link(self._path, kept)
            aside = f"; it is kept as {kept.name}"
        fresh = self._path.with_name(self._path.name + ".new")
        fresh.unlink(missing_ok=True)
        journal = FileJournal(fresh, 1 << 62)
        journal.append(self.last_instant, head, [])
        journal.sync()  # or a machine that loses power could find an empty one in its place
        journal.close()
        fresh.rename(self._path)
        sync_directory(self._path.parent)
        return f"the journal {self._path} {why}{aside}, a new one begins"


def last_settings(path: Path) -> NodeSettings | None:
    """How the last node of this journal was set up; None when there was none, or when that cannot be read."""
    settings = None
    with contextlib.suppress(WorldError):
        for turn in Recovery(path, TurnReader).turns():
            if isinstance(turn.event, NodeStarted | NodeRestored):
                settings = turn.event.settings
    return settings
