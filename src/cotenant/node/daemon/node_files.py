"""The directories, locks and sockets of a running node: checked every second, and created again if they were deleted.

The node and its tenants need none of them to go on, since all shared pages and connections are open. But nobody could
connect any more, and a second node could start in the same place.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cotenant.errors import CotenantError
from cotenant.node.directories import Directories, make_directory, restrict_directory, take_lock
from cotenant.node.model.event import Event, NodeReported
from cotenant.node.model.log_event import LogEventKind, LogLevel
from cotenant.units.instant import SECOND_NS, Instant

PERIOD_NS: Final = SECOND_NS
_LEAST_FREE_BYTES: Final = 16 << 10


class _Directory:
    """One directory and the lock in it."""

    def __init__(self, path: Path, label: str, lock: Path, mode: int) -> None:
        """Create the directory and take its lock; raise `CotenantError`."""
        self.path = path
        self.label = label
        self._field = f"directories.{label}"
        self._lock_path = lock
        self._mode = mode
        make_directory(path, self._field)
        self.lock = take_lock(lock)

    def restrict(self) -> None:
        """Restrict the access to the directory."""
        restrict_directory(self.path, self._field, self._mode)
        self.status = self.path.stat()

    def is_present(self) -> bool:
        """Return whether the directory and the lock are still the node's own."""
        try:
            is_own_lock = os.path.samestat(os.fstat(self.lock), self._lock_path.stat())
            return is_own_lock and os.path.samestat(self.status, self.path.stat())
        except OSError:
            return False

    def restore(self) -> None:
        """Create what is missing; raise `CotenantError` if that fails or another node took the place."""
        make_directory(self.path, self._field)
        if not _is_same(self.lock, self._lock_path):
            lock = take_lock(self._lock_path, "another node")
            os.close(self.lock)
            self.lock = lock
        self.restrict()


class NodeFiles:
    """A timer of the loop; holds the locks of both directories while it is open."""

    def __init__(self, directories: Directories) -> None:
        """Create and lock the directories.

        Two nodes with different runtime directories may still share a journal, for example if XDG_RUNTIME_DIR is set
        in one shell only; so there are two locks.
        """
        self._runtime = _Directory(directories.runtime, "runtime", directories.lock, 0o755)
        try:
            self._state = _Directory(directories.state, "state", directories.journal_lock, 0o700)
        except BaseException:
            os.close(self._runtime.lock)
            raise
        self._state.restrict()
        self._runtime.restrict()  # last, since both may be the same directory
        self._sockets: dict[Path, tuple[os.stat_result, Callable[[], None]]] = {}
        self._post: Callable[[Event], None] = lambda _: None
        self._due: Instant = 0
        self._reported = ""

    def watch(self, post: Callable[[Event], None]) -> None:
        """Report what happens to the files by events from now on."""
        self._post = post

    def add_socket(self, path: Path, reopen: Callable[[], None]) -> None:
        """Watch a listening socket, which exists; `reopen` creates it again."""
        self._sockets[path] = (path.stat(), reopen)

    def socket_paths(self) -> list[Path]:
        """Return the sockets that exist and are the node's own."""
        return [path for path, (status, _) in self._sockets.items() if _is_same_file(status, path)]

    def problem(self) -> str:
        """Return why the directories cannot be used now; empty: they can."""
        for directory in (self._runtime, self._state):
            if not directory.is_present():
                return f"the {directory.label} directory {directory.path} was deleted or replaced"
            if reason := unwritable(directory.path):
                return f"the {directory.label} directory {directory.path} {reason}"
        return ""

    def next_wakeup(self) -> Instant | None:
        """Return when to check the files again."""
        return self._due

    def wake(self, now: Instant) -> None:
        """Create again what was deleted, and report it; report a failure, and its end, once."""
        self._due = now + PERIOD_NS
        restored: list[str] = []
        failure = ""
        for directory in (self._state, self._runtime):
            if not directory.is_present():
                try:
                    directory.restore()
                    restored.append(f"the {directory.label} directory {directory.path}")
                except (CotenantError, OSError) as error:
                    failure = (
                        f"the {directory.label} directory was deleted or replaced, and cannot be restored: {error}"
                    )
        if not failure:
            failure = self._restore_sockets(restored)
        if restored:
            text = f"{' and '.join(restored)} had been deleted and {'is' if len(restored) == 1 else 'are'} there again"
            self._post(NodeReported(LogEventKind.FILES_RESTORED, f"{text}; tenants were not affected"))
        failure = failure or self.problem()
        if failure and failure != self._reported:
            text = f"{failure}; joins are refused, and running tenants continue"
            self._post(NodeReported(LogEventKind.FILES_LOST, text, LogLevel.ERROR))
        elif self._reported and not failure and not restored:
            text = "the directories of the node can be used again"
            self._post(NodeReported(LogEventKind.FILES_RESTORED, text, LogLevel.INFO))
        self._reported = failure

    def _restore_sockets(self, restored: list[str]) -> str:
        """Create the sockets again that are missing; return why one could not be created."""
        for path in list(self._sockets):
            status, reopen = self._sockets[path]  # another socket may have been created together with this one
            if _is_same_file(status, path):
                continue
            try:
                reopen()
                self._sockets[path] = (path.stat(), reopen)
                restored.append(f"the socket {path}")
            except OSError as error:
                return f"the socket {path} was deleted or replaced, and cannot be restored: {error.strerror}"
        return ""

    def close(self) -> None:
        """Remove the sockets that are the node's own, and release the locks."""
        for path in self.socket_paths():
            path.unlink(missing_ok=True)
        for directory in (self._runtime, self._state):
            os.close(directory.lock)


def unwritable(path: Path) -> str:
    """Return why nothing can be written in a directory, as the predicate of a sentence; empty: it can be written."""
    try:
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            return "is on a file system that is mounted read-only"
        if not os.access(path, os.W_OK | os.X_OK):
            return "is not writable"
        free_bytes = free_space(path)
    except OSError as error:
        return f"cannot be used: {error.strerror}"
    return "has no space left" if free_bytes < _LEAST_FREE_BYTES else ""


def free_space(path: Path) -> int:
    """Return the bytes that this user can still write in a directory; quotas are not known."""
    status = os.statvfs(path)
    blocks = status.f_bfree if os.geteuid() == 0 else status.f_bavail
    has_no_inode = status.f_files > 0 and status.f_ffree == 0
    return 0 if has_no_inode else blocks * status.f_frsize


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _is_same_file(status: os.stat_result, path: Path) -> bool:
    try:
        current = path.lstat()
    except OSError:
        return False
    return stat.S_ISSOCK(current.st_mode) and os.path.samestat(status, current)
