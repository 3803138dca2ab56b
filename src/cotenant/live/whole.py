"""How is a small file written so that its readers, whoever is killed when, find all of it or the one before it?"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_whole(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Beside it, then in its place; on the disk before that, so that a machine that loses power has one of both."""
    descriptor, beside = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        os.replace(beside, path)  # noqa: PTH105  a name that mkstemp made
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)  # noqa: PTH108  as above
        raise


def sync_directory(path: Path) -> None:
    """Have what was renamed or made in it be so on the disk, too."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_small(path: Path, limit_bytes: int) -> bytes | None:
    """The first bytes of a file; None where there is none to be read."""
    try:
        with path.open("rb") as file:
            return file.read(limit_bytes)
    except OSError:
        return None
