"""The record directory of a run, and the processes that use the driver without the hook."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cotenant.hook.record import ReadAt, Record

_RECORDS_LIMIT: Final = 4096
_PROCESSES_LIMIT: Final = 4096
_LOCK_FILE: Final = "lock"
TASK_FILE: Final = "task"
"""The file that holds the name of a run."""


def read_records(directory: Path, task: str) -> Iterator[Record]:
    """Yield every record of a directory in the order of names; other files are skipped."""
    from cotenant.hook.record import decode_record  # noqa: PLC0415  slow to import; before a program starts, it is not needed

    for path in sorted(directory.glob("record-*"))[:_RECORDS_LIMIT]:
        with contextlib.suppress(OSError):
            descriptor = open_record(path)
            try:
                record = decode_record(reader(descriptor), task)
            finally:
                os.close(descriptor)
            if record is not None:
                yield record


def open_record(path: Path) -> int:
    """Open a record for reading: a regular file, or a link to a sealed memory file; raise `OSError` if it is neither.

    The tenant may have replaced it by anything, so it is examined before it is opened: opening a pipe would block, and
    opening a device could have effects.
    """
    found = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            raise OSError(errno.EINVAL, "a record must be a regular file", str(path))
        descriptor = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(found)
    if path.is_symlink() and not is_sealed_record(descriptor):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "a link to a record must lead to a sealed memory file", str(path))
    return descriptor


def is_sealed_record(descriptor: int) -> bool:
    """Return whether this is a memory file of the size of a record that only its creator can write."""
    from cotenant.gate.shared_pages import ONE_WRITER  # noqa: PLC0415  as above
    from cotenant.hook.ring_format import RECORD_BYTES  # noqa: PLC0415  as above

    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:  # it is no memory file
        return False
    return seals & ONE_WRITER == ONE_WRITER and os.fstat(descriptor).st_size == RECORD_BYTES


def reader(descriptor: int) -> ReadAt:
    """Return the function that reads a record.

    It is read, not mapped: a tenant that truncates a file would otherwise cause SIGBUS here.
    """
    return lambda at, length: os.pread(descriptor, length, at)


def lock_run_directory(run: Path) -> int:
    """Lock a run directory; it is in use while the returned descriptor is open."""
    new_lock = run / f"{_LOCK_FILE}.new"
    descriptor = os.open(new_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    new_lock.rename(run / _LOCK_FILE)  # renamed only once it is locked: a directory whose lock is free is deleted
    return descriptor


def is_abandoned(run: Path) -> bool:
    """Return whether the process that made the directory is gone, by its lock: it may run in another pid namespace."""
    try:
        descriptor = os.open(run / _LOCK_FILE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # it is being created, or is not readable
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def write_task_name(run: Path, task: str) -> None:
    """Write the name of a run, for commands that show it while it runs."""
    with contextlib.suppress(OSError):
        (run / TASK_FILE).write_text(task, encoding="utf-8", errors="replace")


def process_tree(pid: int) -> list[int]:
    """Return a process and its descendants that still run."""
    pids = [pid]
    for parent in pids:
        if len(pids) >= _PROCESSES_LIMIT:
            break
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
    return pids


def mapped_driver(pid: int, driver: Path, *, hooked: bool) -> str:
    """Return the driver file that a process has mapped without the hook (or, if `hooked`, also with it); else empty."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    files = sorted({parts[5] for line in lines if len(parts := line.split(maxsplit=5)) == 6})
    names = [path.rsplit("/", 1)[-1] for path in files]
    if not hooked and any(name.startswith("libcotenant-") for name in names):
        return ""
    mapped = [path for path, name in zip(files, names, strict=True) if name.startswith("libcuda.so")]
    return min([path for path in files if path == str(driver)] or mapped, default="")


def process_name(pid: int) -> str:
    """Return the name of a process."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""
