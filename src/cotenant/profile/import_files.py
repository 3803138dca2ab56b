"""Read recordings from files: traces, kernel tables and exported profiles, compressed or archived or plain."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from cotenant.errors import ConfigError
from cotenant.profile.kineto import read_kineto
from cotenant.profile.profile import Profile
from cotenant.profile.profile_file import decode_profile, looks_like_profile
from cotenant.workload.kernel_table import read_kernels
from cotenant.workload.timeline import Timeline, profile_of

LIMIT_BYTES: Final = 4 << 30
"""The size limit of one unpacked file, enough for a trace of several minutes."""

_SUFFIXES: Final = (".gz", ".tar", ".tgz", ".json", ".csv", ".pt", ".trace")


def read_recordings(path: Path) -> Iterator[Profile | Timeline]:
    """Yield all recordings of a file; raise `ConfigError` if it cannot be read."""
    try:
        for name, data in _unpacked(path):
            yield from _recordings(data, _task_of(name), str(path))
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError("FILE", str(path), f"it cannot be read: {reason}") from None


def as_profile(recording: Profile | Timeline) -> Profile:
    """Return a recording as a profile."""
    return profile_of(recording) if isinstance(recording, Timeline) else recording


def _unpacked(path: Path) -> Iterator[tuple[str, bytes]]:
    with path.open("rb") as file:
        if tarfile.is_tarfile(file):
            with tarfile.open(path) as archive:
                for entry in sorted((entry for entry in archive if entry.isfile()), key=lambda entry: entry.name):
                    extracted = archive.extractfile(entry)
                    assert extracted is not None  # only entries that are no files have no content
                    yield Path(entry.name).name, _bounded(extracted, entry.name)
            return
        file.seek(0)
        is_gzip = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not is_gzip:
            yield path.name, _bounded(file, str(path))
            return
        with gzip.open(file) as content:
            yield path.name, _bounded(content, str(path))


def _bounded(content: IO[bytes] | gzip.GzipFile, name: str) -> bytes:
    data = content.read(LIMIT_BYTES + 1)
    if len(data) > LIMIT_BYTES:
        raise ConfigError("FILE", name, f"it holds more than {LIMIT_BYTES >> 30} GiB; record fewer steps")
    return data


def _recordings(data: bytes, task: str, where: str) -> Iterator[Profile | Timeline]:
    start = data[:64].lstrip()
    if looks_like_profile(data):
        yield decode_profile(data, where)
    elif start.startswith(b"{"):
        yield from read_kineto(data, task, where)
    elif start.startswith(b"["):
        yield from read_kineto(b'{"traceEvents":' + data + b"}", task, where)
    else:
        yield read_kernels(data, task, where)


def _task_of(name: str) -> str:
    """Return the task name of a file: its name without suffixes of formats and compression."""
    while (stem := Path(name)).suffix.lower() in _SUFFIXES and stem.stem:
        name = stem.stem
    return name
