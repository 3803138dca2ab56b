"""What did the hook leave behind, and did a process use the driver without it?"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from cotenant.format.record import Part, Record, decode_record

_RECORDS_LIMIT: Final = 4096
_PROCESSES_LIMIT: Final = 4096
_LOCK_FILE: Final = "lock"
TASK_FILE: Final = "task"
"""Beside a run's records: what it calls itself."""


def read_records(directory: Path, task: str) -> Iterator[Record]:
    """Every record of a directory, in the order of their names; what is none is passed over."""
    for path in sorted(directory.glob("record-*"))[:_RECORDS_LIMIT]:
        with contextlib.suppress(OSError):
            # Not to wait for whoever opens the other end, if the tenant made it a pipe.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                record = decode_record(_reader(descriptor), task)
            finally:
                os.close(descriptor)
            if record is not None:
                yield record


def _reader(descriptor: int) -> Part:
    # Read, never mapped: a tenant that cuts its file short must not end us.
    return lambda at, length: os.pread(descriptor, length, at)


def show_terms(directory: Path, page: int, gate: Sequence[int] = (), ledger: Sequence[int] = ()) -> None:
    """Put the names of a tenant's terms page and of its device's gate and ledger beside its records.

    A child may have lost the descriptors, or closed what it did not know.
    """
    shown = [("terms", page), *(("gate", one) for one in gate[:1]), *(("ledger", one) for one in ledger[:1])]
    for name, descriptor in shown:
        with contextlib.suppress(OSError):
            (directory / name).unlink(missing_ok=True)  # of the place that it had before
            (directory / name).symlink_to(Path(f"/proc/self/fd/{descriptor}").readlink())


def hold(run: Path) -> int:
    """Say that somebody uses this directory, for as long as the returned descriptor is open."""
    made = run / f"{_LOCK_FILE}.new"
    descriptor = os.open(made, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    made.rename(run / _LOCK_FILE)  # only now: whoever finds a lock that nobody holds clears the directory away
    return descriptor


def is_abandoned(run: Path) -> bool:
    """Whether whoever made the directory is gone. By its lock: in another namespace its pid means nothing."""
    try:
        descriptor = os.open(run / _LOCK_FILE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # it is just being made, or not ours to judge
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def show_task(run: Path, task: str) -> None:
    """Say whose records these are, for whoever looks at them while it runs."""
    with contextlib.suppress(OSError):
        (run / TASK_FILE).write_text(task, encoding="utf-8", errors="replace")


def recorded(directory: Path, pid: int) -> bool:
    """Whether this process has a record. In a namespace of its own it knows itself by another number."""
    return any(directory.glob(f"record-{pid}-*"))


def family(pid: int) -> list[int]:
    """A process and everything it started that still runs."""
    found = [pid]
    for parent in found:
        if len(found) >= _PROCESSES_LIMIT:
            break
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def driver_of(pid: int, driver: Path, *, hooked: bool) -> str:
    """The driver's file that a process has mapped without the hook (or, if `hooked`, even with it); or nothing."""
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


def program_of(pid: int) -> str:
    """What a process calls itself."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""
