"""Private copies of the files of an ONNX model.

ONNX Runtime maps the files of external weights. If a mapped file is truncated, the next access ends the process with
SIGBUS, and if it is overwritten, the loaded model changes. Sessions therefore open a copy that only this process knows.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from cotenant.serve.runtime.model import ModelLoadError, regular_size

GRAPH: Final = "model.onnx"
_PREFIX: Final = "cotenant-weights-"
_TRIES: Final = 3
_GRAPH_LIMIT_BYTES: Final = 2 << 30
"""The limit of protobuf messages."""
_CACHED_MODELS: Final = 4096
_PARTS: Final = {
    ("model", 7): "graph",
    ("model", 25): "function",
    ("function", 7): "node",
    ("graph", 1): "node",
    ("graph", 5): "tensor",
    ("graph", 15): "sparse tensor",
    ("sparse tensor", 1): "tensor",
    ("sparse tensor", 2): "tensor",
    ("node", 5): "attribute",
    ("attribute", 5): "tensor",
    ("attribute", 10): "tensor",
    ("attribute", 6): "graph",
    ("attribute", 11): "graph",
}
"""The field numbers of onnx.proto under which messages contain others that may have tensors."""
_TENSOR_EXTERNAL_DATA: Final = 13
_ENTRY_KEY: Final = 1
_ENTRY_VALUE: Final = 2


class PrivateFiles:
    """A directory with files that sessions open; it is removed by `close`, or by the next server after a crash."""

    def __init__(self) -> None:
        """Create the directory with a lock that shows that it is in use; process IDs differ between containers."""
        self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_weights_root()))
        self._lock = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    @property
    def graph(self) -> Path:
        """Return the file with the model's graph."""
        return self.folder / GRAPH

    def close(self) -> None:
        """Remove the directory; files that are still mapped keep their contents."""
        if self._lock >= 0:
            shutil.rmtree(self.folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def copy_model(path: Path) -> PrivateFiles:
    """Copy a model with its external weights; the copy is of one state of the files."""
    files = PrivateFiles()
    try:
        for _ in range(_TRIES):
            identities = _copy(path, files.folder)
            if all(_identity(source) == identity for source, identity in identities.items()):
                return files
    except OSError as error:
        files.close()
        raise ModelLoadError(f"{path.name} cannot be read: {error}") from None
    except ModelLoadError:
        files.close()
        raise
    files.close()
    raise ModelLoadError(f"{path.name} or its weights are changed while they are read: load it when they are complete")


def _copy(path: Path, folder: Path) -> dict[Path, tuple[int, ...]]:
    """Copy the files; return the identity that each had before."""
    identities = {path: _identity(path)}
    _check_size(path)
    shutil.copyfile(path, folder / GRAPH)
    for location in external_files(folder / GRAPH):
        source, target = path.parent / location, folder / location
        identities[source] = _identity(source)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    return identities


def _identity(path: Path) -> tuple[int, ...]:
    status = path.stat()
    regular_size(path.name, status)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def external_files(path: Path) -> list[str]:
    """Return the files, relative to the model's directory, in which a model keeps weights."""
    return list(_external_files(path, _identity(path)))


@functools.lru_cache(_CACHED_MODELS)
def _external_files(path: Path, identity: tuple[int, ...]) -> tuple[str, ...]:
    """Cached, because every poll asks for the files of every model."""
    del identity
    locations = set()
    _check_size(path)
    data = memoryview(path.read_bytes())
    with contextlib.suppress(ValueError):  # not a model: ONNX Runtime reports why
        for tensor in _tensors(data):
            entries = (dict(_fields(entry)) for number, entry in _fields(tensor) if number == _TENSOR_EXTERNAL_DATA)
            for entry in entries:
                if bytes(entry.get(_ENTRY_KEY, b"")) == b"location":
                    locations.add(bytes(entry.get(_ENTRY_VALUE, b"")).decode("utf-8", "replace"))
    for location in locations:
        relative = PurePosixPath(location)
        if relative.is_absolute() or ".." in relative.parts or location == GRAPH:
            raise ModelLoadError(f"its weights are in {location!r}, which is not below the model's directory")
    return tuple(sorted(locations))


def _check_size(path: Path) -> None:
    size_bytes = regular_size(path.name, path.stat())
    if size_bytes > _GRAPH_LIMIT_BYTES:
        raise ModelLoadError(
            f"{path.name} has {size_bytes} bytes: a model without its external weights has at most 2 GiB"
        )


def _tensors(model: memoryview) -> Iterator[memoryview]:
    """Yield every tensor of a serialized model, including those of subgraphs and functions."""
    messages = [("model", model)]
    while messages:
        kind, message = messages.pop()
        for number, field in _fields(message):
            part = _PARTS.get((kind, number))
            if part == "tensor":
                yield field
            elif part is not None:
                messages.append((part, field))


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the length-delimited fields of a protobuf message; raise ValueError if it is invalid."""
    position, end = 0, len(message)
    while position < end:
        key, position = _varint(message, position)
        wire_type = key & 7
        if wire_type == 2:
            length, position = _varint(message, position)
            if position + length > end:
                raise ValueError("a field is truncated")
            yield key >> 3, message[position : position + length]
            position += length
        elif wire_type == 0:
            _, position = _varint(message, position)
        elif wire_type in (1, 5):
            position += 8 if wire_type == 1 else 4
        else:
            raise ValueError("a field has an unknown type")


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(message) or shift > 63:
            raise ValueError("a number is truncated")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _weights_root() -> str:
    """Return a directory that is on a disk by convention; in a tmpfs, the files would occupy memory."""
    return next((folder for folder in ("/var/tmp",) if os.access(folder, os.W_OK)), tempfile.gettempdir())  # noqa: S108


def remove_stale_weights() -> None:
    """Remove the directories of processes that were killed."""
    for folder in Path(_weights_root()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.geteuid():
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
