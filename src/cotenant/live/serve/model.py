"""What is a model once it is loaded? Something that turns a batch of tensors into another, on some thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from cotenant.domain.instant import Duration
from cotenant.domain.serving import ModelSpec
from cotenant.format.tensor import Array

QUICK_NS: Final = 100_000
"""A run that is surely shorter is done on the loop's own thread: handing it to another and back costs as much."""
_RUNS_TO_TRUST: Final = 16
_STRIKES: Final = 3
_FAR_TOO_SLOW: Final = 100


class Runnable(Protocol):
    """One loading of a model."""

    spec: ModelSpec

    def run(self, inputs: Sequence[Array], cores: Sequence[int] | None = None) -> list[Array]:
        """The outputs for these inputs, both in the order of the spec; from any thread.

        On these cores of the machine, of which the calling thread has the first; an empty list: on any of them, whoever
        else uses them; without: by the calling thread alone.
        """
        ...

    def stream(self, inputs: Sequence[Array]) -> Iterator[list[Array]]:
        """As `run`, for a decoupled model."""
        ...

    def is_quick(self, size_bytes: int) -> bool:
        """Whether a run of so many bytes may be done by the thread that reads requests."""
        ...

    def took(self, size_bytes: int, took_ns: Duration) -> None:
        """What a run took of its thread's time, waits for others left out."""
        ...

    def took_at_once(self, took_ns: Duration) -> None:
        """What a run took by the clock, that was done where requests are read."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...


class Pace:
    """Whether runs of a model have been quick lately, by the size of what went in."""

    __slots__ = ("_known_bytes", "_runs", "_strikes")

    def __init__(self) -> None:
        """Nothing is known, so nothing is quick."""
        self._runs = 0
        self._known_bytes = 0
        self._strikes = 0

    def is_quick(self, size_bytes: int) -> bool:
        """True after some runs in a row that were quick, for inputs no larger than theirs."""
        return self._runs >= _RUNS_TO_TRUST and size_bytes <= self._known_bytes

    def took(self, size_bytes: int, took_ns: Duration) -> None:
        """One slow run, and it must earn its trust again."""
        if took_ns > QUICK_NS:
            self._runs = self._known_bytes = 0
            return
        self._runs += 1
        self._known_bytes = max(self._known_bytes, size_bytes)

    def took_at_once(self, took_ns: Duration) -> None:
        """By the clock a quick run may look slow if others were let in: three in a row count, or one far off."""
        if took_ns <= QUICK_NS:
            self._strikes = 0
            return
        self._strikes += 1
        if self._strikes >= _STRIKES or took_ns > _FAR_TOO_SLOW * QUICK_NS:
            self._runs = self._known_bytes = self._strikes = 0


class LoadFailed(Exception):  # noqa: N818  not an error of ours: a model that cannot be served
    """A model that cannot be served, and why."""


def any_rank(shape: Sequence[Any]) -> tuple[int, ...]:
    """A shape of a model file, in which a free dimension has a name or nothing."""
    return tuple(one if isinstance(one, int) and one >= 0 else -1 for one in shape)
