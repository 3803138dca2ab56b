"""Write small files atomically: a reader finds either the old or the new content, whenever a process is killed."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace a file by a synced temporary file of the same directory, so that also a power loss leaves one of both."""
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
