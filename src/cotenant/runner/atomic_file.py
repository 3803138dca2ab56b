"""Write small files atomically: a reader finds either the old or the new content, whenever a process is killed."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path


def write_atomically(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace a file by a synced temporary file of the same directory, so that also a power loss leaves one of both."""
    import tempfile  # noqa: PLC0415  slow to import

    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        os.replace(temporary, path)  # noqa: PTH105  a name that mkstemp made
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)  # noqa: PTH108  as above
        raise


def replace_file(path: Path, data: bytes) -> None:
    """Write a file that a user named: an interrupted write leaves an existing file as it was.

    A new file has the mode of any other new file of the user, and a replaced one keeps its mode. What is no file, such
    as a pipe or a terminal, is written directly.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        target.write_bytes(data)
        return
    temporary = target.with_name(f".{target.name}-{os.getpid()}")
    try:
        temporary.write_bytes(data)
        if target.exists():
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def check_replaceable(path: Path) -> None:
    """Raise `OSError` if `replace_file` could not write this file; for use before a long computation."""
    target = path.resolve()
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if target.exists() and not target.is_file():
        return
    import tempfile  # noqa: PLC0415  as above

    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
    os.close(descriptor)
    os.unlink(temporary)  # noqa: PTH108  a name that mkstemp made


def sync_directory(path: Path) -> None:
    """Write the entries of a directory to the disk, after a file in it was created or renamed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_limited(path: Path, limit_bytes: int) -> bytes | None:
    """Return at most `limit_bytes` of a file; None where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(limit_bytes)
    except OSError:
        return None
