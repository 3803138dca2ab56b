"""Shared state of the processes of a soak test, in mapped files that survive a killed process."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final

WORK: Final = 0
QUIET: Final = 1
STOP: Final = 2
"""Orders: continue; wait for the device and pause; end."""

KINDS: Final = (
    *("plain", "pitch", "managed", "async", "pool", "pool_make", "physical", "array", "array3d", "mipmap"),
    *("graph", "graph_kept", "export", "open", "module", "context"),
)
"""Kinds of allocations of device memory."""

_WORD: Final = struct.Struct("<Q")
_HEAD_WORDS: Final = 8
_FIXED: Final = ("turn", "done", "denied", "stale", "failed", "failed_call", "failed_code", "lives")
_WORKER_WORDS: Final = len(_FIXED) + len(KINDS)
_LETTERS: Final = 64
_LETTER_BYTES: Final = 64


class Board:
    """Orders to the workers of one tenant, and counters of each worker."""

    def __init__(self, path: Path, workers: int) -> None:
        """Map the file; create it if it does not exist."""
        size_bytes = (_HEAD_WORDS + workers * _WORKER_WORDS) * _WORD.size
        self.workers = workers
        self._words = _mapped(path, size_bytes)

    @property
    def order(self) -> int:
        """Return the current order."""
        return self._get(0)

    @property
    def turn(self) -> int:
        """Return how often the order has changed."""
        return self._get(1)

    def set_order(self, order: int) -> None:
        """Change the order."""
        self._set(0, order)
        self._set(1, self.turn + 1)

    def obeyed(self) -> bool:
        """Return whether every worker has read the latest order."""
        return all(self.get(worker, "turn") == self.turn for worker in range(self.workers))

    def get(self, worker: int, word: str) -> int:
        """Return a counter of one worker."""
        return self._get(self._index(worker, word))

    def set(self, worker: int, word: str, value: int) -> None:
        """Write a counter; only that worker calls this."""
        self._set(self._index(worker, word), value)

    def add(self, worker: int, word: str) -> None:
        """Increment a counter."""
        offset = self._index(worker, word)
        self._set(offset, self._get(offset) + 1)

    def total(self, word: str) -> int:
        """Return the sum over all workers."""
        return sum(self.get(worker, word) for worker in range(self.workers))

    def _index(self, worker: int, word: str) -> int:
        index = _FIXED.index(word) if word in _FIXED else len(_FIXED) + KINDS.index(word)
        return _HEAD_WORDS + worker * _WORKER_WORDS + index

    def _get(self, offset: int) -> int:
        return int(_WORD.unpack_from(self._words, offset * _WORD.size)[0])

    def _set(self, offset: int, value: int) -> None:
        _WORD.pack_into(self._words, offset * _WORD.size, value)


class Mail:
    """Memory handles for other processes to open; the driver rejects a stale or torn one."""

    def __init__(self, path: Path) -> None:
        """Map the file; create it if it does not exist."""
        self._letters = _mapped(path, _LETTERS * _LETTER_BYTES)

    def send(self, number: int, handle: bytes) -> None:
        """Store a handle in the place of an older one."""
        offset = number % _LETTERS * _LETTER_BYTES
        self._letters[offset : offset + _LETTER_BYTES] = handle

    def recall(self, number: int, handle: bytes) -> None:
        """Remove the handle if it is still there, so that most handles in the file can be opened."""
        offset = number % _LETTERS * _LETTER_BYTES
        if self._letters[offset : offset + _LETTER_BYTES] == handle:
            self._letters[offset : offset + _LETTER_BYTES] = bytes(_LETTER_BYTES)

    def take(self, number: int) -> bytes:
        """Return a stored handle, or zeros."""
        stored = (
            bytes(self._letters[index * _LETTER_BYTES : (index + 1) * _LETTER_BYTES]) for index in range(_LETTERS)
        )
        letters = [letter for letter in stored if any(letter)]
        return letters[number % len(letters)] if letters else bytes(_LETTER_BYTES)


def _mapped(path: Path, size_bytes: int) -> mmap.mmap:
    with path.open("a+b") as file:
        if file.seek(0, 2) < size_bytes:
            file.truncate(size_bytes)
        return mmap.mmap(file.fileno(), size_bytes)
