"""What do the processes of a soak tell each other? Words in mapped files, which outlive whoever is killed."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final

WORK: Final = 0
QUIET: Final = 1
STOP: Final = 2
"""Orders: go on; wait for the device and then do nothing; end."""

KINDS: Final = (
    *("plain", "pitch", "managed", "async", "pool", "pool_make", "physical", "array", "array3d", "mipmap"),
    *("graph", "graph_kept", "export", "open", "module", "context"),
)
"""Ways to come by device memory."""

_WORD: Final = struct.Struct("<Q")
_HEAD_WORDS: Final = 8
_FIXED: Final = ("turn", "done", "denied", "stale", "failed", "failed_call", "failed_code", "lives")
_WORKER_WORDS: Final = len(_FIXED) + len(KINDS)
_LETTERS: Final = 64
_LETTER_BYTES: Final = 64


class Board:
    """The orders to the workers of one tenant, and what each has done."""

    def __init__(self, path: Path, workers: int) -> None:
        """Map it; it is made if it is not there."""
        size_bytes = (_HEAD_WORDS + workers * _WORKER_WORDS) * _WORD.size
        self.workers = workers
        self._words = _mapped(path, size_bytes)

    @property
    def order(self) -> int:
        """What is to be done now."""
        return self._get(0)

    @property
    def turn(self) -> int:
        """How often that has changed."""
        return self._get(1)

    def tell(self, order: int) -> None:
        """Change it."""
        self._put(0, order)
        self._put(1, self.turn + 1)

    def obeyed(self) -> bool:
        """Whether every worker has heard the latest order."""
        return all(self.get(worker, "turn") == self.turn for worker in range(self.workers))

    def get(self, worker: int, word: str) -> int:
        """A number of one worker, or how often it did something of a kind."""
        return self._get(self._at(worker, word))

    def put(self, worker: int, word: str, value: int) -> None:
        """Written by that worker alone."""
        self._put(self._at(worker, word), value)

    def add(self, worker: int, word: str) -> None:
        """One more."""
        at = self._at(worker, word)
        self._put(at, self._get(at) + 1)

    def total(self, word: str) -> int:
        """Of all workers."""
        return sum(self.get(worker, word) for worker in range(self.workers))

    def _at(self, worker: int, word: str) -> int:
        place = _FIXED.index(word) if word in _FIXED else len(_FIXED) + KINDS.index(word)
        return _HEAD_WORDS + worker * _WORKER_WORDS + place

    def _get(self, at: int) -> int:
        return int(_WORD.unpack_from(self._words, at * _WORD.size)[0])

    def _put(self, at: int, value: int) -> None:
        _WORD.pack_into(self._words, at * _WORD.size, value)


class Mail:
    """Handles of memory, for whoever likes to open them: a stale or torn one is refused by the driver."""

    def __init__(self, path: Path) -> None:
        """Map it; it is made if it is not there."""
        self._letters = _mapped(path, _LETTERS * _LETTER_BYTES)

    def send(self, number: int, handle: bytes) -> None:
        """In the place of an older one."""
        at = number % _LETTERS * _LETTER_BYTES
        self._letters[at : at + _LETTER_BYTES] = handle

    def recall(self, number: int, handle: bytes) -> None:
        """If it still is there: most of those that are found can then be opened."""
        at = number % _LETTERS * _LETTER_BYTES
        if self._letters[at : at + _LETTER_BYTES] == handle:
            self._letters[at : at + _LETTER_BYTES] = bytes(_LETTER_BYTES)

    def take(self, number: int) -> bytes:
        """One of those that are there, or zeros."""
        found = (bytes(self._letters[at * _LETTER_BYTES : (at + 1) * _LETTER_BYTES]) for at in range(_LETTERS))
        letters = [letter for letter in found if any(letter)]
        return letters[number % len(letters)] if letters else bytes(_LETTER_BYTES)


def _mapped(path: Path, size_bytes: int) -> mmap.mmap:
    with path.open("a+b") as file:
        if file.seek(0, 2) < size_bytes:
            file.truncate(size_bytes)
        return mmap.mmap(file.fileno(), size_bytes)
