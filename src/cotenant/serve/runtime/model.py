"""Interface of a loaded model, and detection of models whose runs are very short."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from cotenant.serve.model.event import ModelSpec
from cotenant.serve.protocol.oip.tensor import Array
from cotenant.units.instant import Duration

QUICK_NS: Final = 100_000
"""A shorter run is done on the event loop's thread, because handing it to another thread costs as much."""
TEXT_LIMIT_BYTES: Final = 16 << 20
"""Limit of configuration and source files. Our choice."""
_RUNS_TO_TRUST: Final = 16
_STRIKES: Final = 3
_FAR_TOO_SLOW: Final = 100


class ModelSource(NamedTuple):
    """A model that can be loaded, or the reason why it cannot."""

    name: str
    version: str
    path: Path
    config: Path
    triton: Path | None = None
    broken: str = ""


class LoadedModel(Protocol):
    """A loaded instance of a model."""

    spec: ModelSpec

    def run(self, inputs: Sequence[Array], cores: Sequence[int] | None = None) -> list[Array]:
        """Return the outputs for these inputs, both in the order of the spec; may be called from any thread.

        `cores` are the machine's cores to use; the calling thread is on the first one. An empty list means all cores,
        shared with other runs; None means the calling thread only.
        """
        ...

    def stream(self, inputs: Sequence[Array]) -> Iterator[list[Array]]:
        """Yield the responses of a decoupled model."""
        ...

    def is_quick(self, size_bytes: int) -> bool:
        """Return whether a run with this input size may be done on the event loop's thread."""
        ...

    def record_run(self, size_bytes: int, took_ns: Duration) -> None:
        """Record the CPU time of a run, without waiting."""
        ...

    def record_inline_run(self, took_ns: Duration) -> None:
        """Record the elapsed time of a run on the event loop's thread."""
        ...

    def close(self) -> None:
        """Release its resources."""
        ...


class QuickRunDetector:
    """Tells whether recent runs of a model were very short, by input size."""

    __slots__ = ("_known_bytes", "_runs", "_strikes")

    def __init__(self) -> None:
        """Start with no model known to be quick."""
        self._runs = 0
        self._known_bytes = 0
        self._strikes = 0

    def is_quick(self, size_bytes: int) -> bool:
        """Return True after a number of consecutive quick runs, for inputs no larger than theirs."""
        return self._runs >= _RUNS_TO_TRUST and size_bytes <= self._known_bytes

    def record_run(self, size_bytes: int, took_ns: Duration) -> None:
        """Record a run; one slow run resets the count."""
        if took_ns > QUICK_NS:
            self._runs = self._known_bytes = 0
            return
        self._runs += 1
        self._known_bytes = max(self._known_bytes, size_bytes)

    def record_inline_run(self, took_ns: Duration) -> None:
        """Record elapsed time, which may include other threads: three slow runs count, or one very slow run."""
        if took_ns <= QUICK_NS:
            self._strikes = 0
            return
        self._strikes += 1
        if self._strikes >= _STRIKES or took_ns > _FAR_TOO_SLOW * QUICK_NS:
            self._runs = self._known_bytes = self._strikes = 0


class ModelLoadError(Exception):
    """A model cannot be served; the message says why."""


def any_rank(shape: Sequence[Any]) -> tuple[int, ...]:
    """Return a shape from a model file with -1 for free dimensions, which have a name or no value there."""
    return tuple(dimension if isinstance(dimension, int) and dimension >= 0 else -1 for dimension in shape)


def read_file(path: Path, limit_bytes: int = TEXT_LIMIT_BYTES) -> bytes:
    """Return the contents of a configuration or source file.

    Folders of models may contain anything: a pipe would block the reader for ever, and a device has no end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:  # noqa: PTH123  a descriptor, not a path
        size_bytes = regular_size(path.name, os.fstat(descriptor))
        if size_bytes > limit_bytes:
            raise ModelLoadError(f"{path.name} has {size_bytes} bytes, {limit_bytes} are the limit")
        return file.read(limit_bytes)


def regular_size(name: str, status: os.stat_result) -> int:
    """Return the size of a regular file; raise `ModelLoadError` for anything else."""
    if not stat.S_ISREG(status.st_mode):
        raise ModelLoadError(f"{name} is not a regular file")
    return status.st_size
