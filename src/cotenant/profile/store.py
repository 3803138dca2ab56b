"""The profile store: one SQLite file that any number of processes may write at the same time.

Every recording is a row of its own, so concurrent writers never overwrite each other; a profile is the merge of the
latest recordings of one task on one device model. Older recordings are deleted, so outdated timings disappear.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from cotenant.errors import ConfigError, SetupError, WorldError
from cotenant.node.directories import Directories

if TYPE_CHECKING:
    import sqlite3

    from cotenant.profile.profile import Profile

RECORDINGS_KEPT: Final = 16
"""The number of recordings kept per task and device."""

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


class ProfileKey(msgspec.Struct, frozen=True, order=True):
    """The key of a profile: a task on one device model."""

    task: str
    device: str


class StoredProfile(msgspec.Struct, frozen=True):
    """One profile of the store, and the time of its last recording (nanoseconds since 1970)."""

    profile: Profile
    recorded_ns: int


def open_store(directories: Directories, report: Callable[[str], None]) -> ProfileStore:
    """Return the profile store of this machine's node."""
    return ProfileStore(directories.state / "profiles.sqlite", report)


class ProfileStore:
    """Reads and writes the file; a damaged file is renamed and reported, and is never an error."""

    def __init__(self, path: Path, report: Callable[[str], None]) -> None:
        """Store profiles in this file, which is created with the first recording."""
        self.path = path
        self._report = report

    def add(self, profile: Profile, at_ns: int) -> None:
        """Store one more recording of a task."""
        import zlib  # noqa: PLC0415  only if there are profiles

        body = msgspec.msgpack.encode(profile)

        def insert(database: sqlite3.Connection) -> None:
            row = (profile.task, profile.device, at_ns, body, zlib.crc32(body))
            database.execute("INSERT INTO recording (task, device, at_ns, body, crc) VALUES (?, ?, ?, ?, ?)", row)
            database.execute(
                "DELETE FROM recording WHERE task = ? AND device = ? AND id NOT IN "
                "(SELECT id FROM recording WHERE task = ? AND device = ? ORDER BY id DESC LIMIT ?)",
                (profile.task, profile.device, profile.task, profile.device, RECORDINGS_KEPT),
            )

        self._run_transaction(insert)

    def keys(self) -> list[ProfileKey]:
        """Return the keys of all profiles, in order."""
        if not self.path.exists():
            return []
        query = "SELECT DISTINCT task, device FROM recording ORDER BY task, device"
        return self._run_transaction(
            lambda database: [ProfileKey(*row) for row in database.execute(query)], writing=False
        )

    def recordings(self, key: ProfileKey) -> list[StoredProfile]:
        """Return the recordings of one task and device, the oldest first."""
        if not self.path.exists():
            return []
        query = "SELECT id, at_ns, body, crc FROM recording WHERE task = ? AND device = ? ORDER BY id"
        rows = self._run_transaction(
            lambda database: list(database.execute(query, (key.task, key.device))), writing=False
        )
        return list(self._decode_rows(rows))

    def get(self, key: ProfileKey) -> StoredProfile | None:
        """Return all recordings of one task and device as one profile."""
        recordings = self.recordings(key)
        if not recordings:
            return None
        from cotenant.profile.profile import merge  # noqa: PLC0415  only if there are profiles

        return StoredProfile(
            merge((recording.profile for recording in recordings), key.task, key.device), recordings[-1].recorded_ns
        )

    def prune(self, keys: Sequence[ProfileKey], before_ns: int, keep: int) -> int:
        """Delete recordings made before an instant, and all but the latest `keep` of each key; return how many."""
        if not self.path.exists():
            return 0

        def delete(database: sqlite3.Connection) -> int:
            deleted = 0
            for key in keys:
                deleted += database.execute(
                    "DELETE FROM recording WHERE task = ? AND device = ? AND (at_ns < ? OR id NOT IN "
                    "(SELECT id FROM recording WHERE task = ? AND device = ? ORDER BY id DESC LIMIT ?))",
                    (key.task, key.device, before_ns, key.task, key.device, keep),
                ).rowcount
            return deleted

        return self._run_transaction(delete)

    def _decode_rows(self, rows: list[tuple[int, int, bytes, int]]) -> Iterator[StoredProfile]:
        import zlib  # noqa: PLC0415  as above

        from cotenant.profile.profile import Profile  # noqa: PLC0415  as above

        for number, at_ns, body, crc in rows:
            try:
                if zlib.crc32(body) != crc:
                    raise ValueError("its checksum does not match")
                yield StoredProfile(msgspec.msgpack.decode(body, type=Profile), at_ns)
            except (ValueError, TypeError, msgspec.DecodeError) as error:
                self._report(f"{self.path}: recording {number} is damaged and skipped: {error}")

    def _run_transaction(self, work: Callable[[sqlite3.Connection], _T], *, writing: bool = True) -> _T:
        """Run one transaction; if the file is damaged, rename it once and run on a new file."""
        import sqlite3  # noqa: PLC0415  only if there are profiles

        try:
            return self._transact(work, writing=writing)
        except sqlite3.DatabaseError as error:
            if not any(word in str(error) for word in _DAMAGE):
                raise WorldError(f"{self.path}: {error}; try again, or repair its directory") from None
            self._rename_damaged(str(error))
        try:
            return self._transact(work, writing=writing)
        except sqlite3.DatabaseError as error:
            raise SetupError(f"{self.path}: {error}; move it away manually") from None

    def _transact(self, work: Callable[[sqlite3.Connection], _T], *, writing: bool) -> _T:
        with self._open() as database, database:
            # A reader never waits for writers; but a new file is created by a write transaction.
            has_schema = int(database.execute("PRAGMA user_version").fetchone()[0]) == _SCHEMA
            database.execute("BEGIN IMMEDIATE" if writing or not has_schema else "BEGIN")
            self._migrate(database)
            return work(database)

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        import sqlite3  # noqa: PLC0415  as above

        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            database = sqlite3.connect(self.path, timeout=_PATIENCE_MS / 1000, isolation_level=None)
        except (OSError, sqlite3.OperationalError) as error:
            raise WorldError(
                f"{self.path} cannot be opened: {error}; repair its directory, or set --state-dir"
            ) from None
        try:
            database.execute("PRAGMA journal_mode = WAL")
            # A profile that is lost in a power cut is measured again; syncing would delay the end of every program.
            database.execute("PRAGMA synchronous = NORMAL")
            yield database
        finally:
            database.close()

    def _migrate(self, database: sqlite3.Connection) -> None:
        version = int(database.execute("PRAGMA user_version").fetchone()[0])
        if version > _SCHEMA:
            remedy = (
                f"it has schema {version} of a newer cotenant (this version supports {_SCHEMA}); use the newer version"
            )
            raise ConfigError("profiles", str(self.path), remedy)
        while version < _SCHEMA:
            for statement in _MIGRATIONS[version].split(";"):
                if statement.strip():
                    database.execute(statement)
            version += 1
            database.execute(f"PRAGMA user_version = {version}")

    def _rename_damaged(self, why: str) -> None:
        """Rename the file and its WAL, once even if two processes find the damage: a lock and a second check."""
        lock = os.open(self.path.with_name(self.path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._is_sound():
                return
            renamed = next(
                path
                for number in range(1, 10_000)
                if not (path := self.path.with_name(f"{self.path.name}.damaged-{number}")).exists()
            )
            self.path.rename(renamed)
            for suffix in ("-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    self.path.with_name(self.path.name + suffix).rename(renamed.with_name(renamed.name + suffix))
            self._report(f"{self.path} was damaged ({why}) and renamed to {renamed.name}; profiles are measured again")
        finally:
            os.close(lock)

    def _is_sound(self) -> bool:
        import sqlite3  # noqa: PLC0415  as above

        if not self.path.exists():
            return True
        try:
            with self._open() as database:
                return bool(database.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok")
        except sqlite3.DatabaseError:
            return False
