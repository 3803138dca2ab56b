"""Where are profiles kept? One SQLite file, written by any number of processes at once.

Every recording is a row of its own, so two writers never undo each other; a profile is the merge of the latest
recordings of one task on one kind of device. Older ones drop out by themselves, and with them what was once true.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from cotenant.domain.profile import Profile, merge
from cotenant.errors import ConfigError, WorldError

KEPT: Final = 16
"""Recordings kept of one task and device."""

_SCHEMA: Final = 1
_PATIENCE_MS: Final = 10_000
_DAMAGE: Final = (
    "malformed",
    "not a database",
    "disk image",
    "corrupt",
    "file is encrypted",
    "unsupported file format",
)
_MIGRATIONS: Final[dict[int, str]] = {
    0: """
        CREATE TABLE recording (
            id INTEGER PRIMARY KEY,
            task TEXT NOT NULL,
            device TEXT NOT NULL,
            at_ns INTEGER NOT NULL,
            body BLOB NOT NULL,
            crc INTEGER NOT NULL
        );
        CREATE INDEX recording_of ON recording (task, device, id);
    """
}
_T = TypeVar("_T")


class Key(msgspec.Struct, frozen=True, order=True):
    """Whose profile: a task, on one kind of device."""

    task: str
    device: str


class Kept(msgspec.Struct, frozen=True):
    """One profile of the store, and when it was last added to (nanoseconds since 1970)."""

    profile: Profile
    recorded_ns: int


class ProfileStore:
    """The file and how it is read and written. Damage is set aside and said, never fatal."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        """Keep profiles in this file; it and its directory are made when something is added."""
        self.path = path
        self._say = say

    def add(self, profile: Profile, at_ns: int) -> None:
        """Keep one more recording of a task."""
        body = msgspec.msgpack.encode(profile)

        def insert(database: sqlite3.Connection) -> None:
            row = (profile.task, profile.device, at_ns, body, zlib.crc32(body))
            database.execute("INSERT INTO recording (task, device, at_ns, body, crc) VALUES (?, ?, ?, ?, ?)", row)
            database.execute(
                "DELETE FROM recording WHERE task = ? AND device = ? AND id NOT IN "
                "(SELECT id FROM recording WHERE task = ? AND device = ? ORDER BY id DESC LIMIT ?)",
                (profile.task, profile.device, profile.task, profile.device, KEPT),
            )

        self._work(insert)

    def keys(self) -> list[Key]:
        """Whose profiles there are, in order."""
        if not self.path.exists():
            return []
        query = "SELECT DISTINCT task, device FROM recording ORDER BY task, device"
        return self._work(lambda database: [Key(*row) for row in database.execute(query)], writing=False)

    def recordings(self, key: Key) -> list[Kept]:
        """The recordings of one task and device, the oldest first."""
        if not self.path.exists():
            return []
        query = "SELECT id, at_ns, body, crc FROM recording WHERE task = ? AND device = ? ORDER BY id"
        rows = self._work(lambda database: list(database.execute(query, (key.task, key.device))), writing=False)
        return list(self._sound(rows))

    def get(self, key: Key) -> Kept | None:
        """All recordings of one task and device as one profile."""
        found = self.recordings(key)
        if not found:
            return None
        return Kept(merge((one.profile for one in found), key.task, key.device), found[-1].recorded_ns)

    def prune(self, keys: Sequence[Key], before_ns: int, keep: int) -> int:
        """Forget recordings made before an instant, and all but the latest `keep` of each key; returns how many."""
        if not self.path.exists():
            return 0

        def delete(database: sqlite3.Connection) -> int:
            gone = 0
            for key in keys:
                gone += database.execute(
                    "DELETE FROM recording WHERE task = ? AND device = ? AND (at_ns < ? OR id NOT IN "
                    "(SELECT id FROM recording WHERE task = ? AND device = ? ORDER BY id DESC LIMIT ?))",
                    (key.task, key.device, before_ns, key.task, key.device, keep),
                ).rowcount
            return gone

        return self._work(delete)

    def _sound(self, rows: list[tuple[int, int, bytes, int]]) -> Iterator[Kept]:
        for number, at_ns, body, crc in rows:
            try:
                if zlib.crc32(body) != crc:
                    raise ValueError("its checksum does not match")
                yield Kept(msgspec.msgpack.decode(body, type=Profile), at_ns)
            except (ValueError, TypeError, msgspec.DecodeError) as error:
                self._say(f"{self.path}: recording {number} is damaged and left out: {error}")

    def _work(self, work: Callable[[sqlite3.Connection], _T], *, writing: bool = True) -> _T:
        """One transaction. A damaged file is set aside, once, and the work is done on a new one."""
        try:
            return self._transact(work, writing=writing)
        except sqlite3.DatabaseError as error:
            if not any(word in str(error) for word in _DAMAGE):
                raise WorldError(f"{self.path}: {error}; try again, or mend its directory") from None
            self._set_aside(str(error))
        try:
            return self._transact(work, writing=writing)
        except sqlite3.DatabaseError as error:
            raise WorldError(f"{self.path}: {error}; move it away by hand") from None

    def _transact(self, work: Callable[[sqlite3.Connection], _T], *, writing: bool) -> _T:
        with self._open() as database, database:
            # Who only reads waits for nobody, however busy the writers are; but a new file is made by a writer.
            is_made = int(database.execute("PRAGMA user_version").fetchone()[0]) == _SCHEMA
            database.execute("BEGIN IMMEDIATE" if writing or not is_made else "BEGIN")
            self._migrate(database)
            return work(database)

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            database = sqlite3.connect(self.path, timeout=_PATIENCE_MS / 1000, isolation_level=None)
        except (OSError, sqlite3.OperationalError) as error:
            raise WorldError(f"{self.path} cannot be opened: {error}; mend its directory, or set --state") from None
        try:
            database.execute("PRAGMA journal_mode = WAL")
            # A profile lost to a power cut is measured again; waiting for the disk at every end of a program is not.
            database.execute("PRAGMA synchronous = NORMAL")
            yield database
        finally:
            database.close()

    def _migrate(self, database: sqlite3.Connection) -> None:
        version = int(database.execute("PRAGMA user_version").fetchone()[0])
        if version > _SCHEMA:
            remedy = f"it was written by a newer cotenant (schema {version}, this one knows {_SCHEMA}); use that one"
            raise ConfigError("profiles", str(self.path), remedy)
        while version < _SCHEMA:
            for statement in _MIGRATIONS[version].split(";"):
                if statement.strip():
                    database.execute(statement)
            version += 1
            database.execute(f"PRAGMA user_version = {version}")

    def _set_aside(self, why: str) -> None:
        """Rename the file and its journal. Two may find the damage at once: the lock and a second look make it one."""
        lock = os.open(self.path.with_name(self.path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._is_sound():
                return
            aside = next(
                path
                for number in range(1, 10_000)
                if not (path := self.path.with_name(f"{self.path.name}.damaged-{number}")).exists()
            )
            self.path.rename(aside)
            for suffix in ("-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    self.path.with_name(self.path.name + suffix).rename(aside.with_name(aside.name + suffix))
            self._say(f"{self.path} was damaged ({why}): set aside as {aside.name}; profiles are measured anew")
        finally:
            os.close(lock)

    def _is_sound(self) -> bool:
        if not self.path.exists():
            return True
        try:
            with self._open() as database:
                return bool(database.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok")
        except sqlite3.DatabaseError:
            return False
