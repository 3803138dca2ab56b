"""Which process wrote this line, and does it live? A ledger knows processes by a word, also those of containers.

The word (`ct_ledger_identity` of native/ledger/ledger.h) has a process's number in its own namespace, which namespace
that is, and when it started. A number alone would be another process's before long.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

_PID_BITS: Final = 22
_SPACE_BITS: Final = 22
_START_BITS: Final = 20
_PROC: Final = Path("/proc")
_STATE_FIELD, _START_FIELD = 0, 19  # after the name in brackets, which may hold anything: fields 3 and 22
STOPPED: Final = ("T", "t")
"""States of a process that was stopped, or that somebody debugs."""


class Word(NamedTuple):
    """Who wrote a line, taken apart."""

    pid: int
    space: int
    start: int


def word_of(owner: int) -> Word:
    """The parts of an identity, each as far as its bits go."""
    return Word(
        owner >> (_SPACE_BITS + _START_BITS) & ((1 << _PID_BITS) - 1),
        owner >> _START_BITS & ((1 << _SPACE_BITS) - 1),
        owner & ((1 << _START_BITS) - 1),
    )


def is_vague(owner: int) -> bool:
    """Whether the process has no /proc, and could not tell its namespace and its start: nobody can be found by that."""
    word = word_of(owner)
    return not word.space and not word.start


def identity_of(pid: int, space_inode: int, start_ticks: int) -> int:
    """As `ct_ledger_identity` makes it."""
    parts = ((pid, _PID_BITS), (space_inode, _SPACE_BITS), (start_ticks, _START_BITS))
    word = 0
    for part, bits in parts:
        word = word << bits | part & ((1 << bits) - 1)
    return word


class Stat(NamedTuple):
    """What the kernel says of a process."""

    state: str
    start_ticks: int


def stat_of(pid: int, proc: Path = _PROC) -> Stat | None:
    """None: there is no such process (any more)."""
    try:
        text = (proc / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    return parse_stat(text)


def parse_stat(text: bytes) -> Stat | None:
    """The name of a process may hold brackets and spaces: what counts comes after the last bracket."""
    fields = text.rpartition(b")")[2].split()
    if len(fields) <= _START_FIELD or not fields[_START_FIELD].isdigit():
        return None
    return Stat(fields[_STATE_FIELD].decode("ascii", "replace"), int(fields[_START_FIELD]))


def parse_numbers(status: bytes) -> tuple[int, ...]:
    """A process's numbers in every namespace it is in, ours first and its own last; none if that cannot be read."""
    for line in status.splitlines():
        if line.startswith(b"NSpid:"):
            words = line.split()[1:]
            return tuple(map(int, words)) if all(word.isdigit() for word in words) else ()
    return ()


class Kin:
    """Finds processes by their identity, and holds on to them: a pidfd never comes to name somebody else."""

    def __init__(self, proc: Path = _PROC) -> None:
        """Look into this proc filesystem."""
        self._proc = proc
        self._space = _inode(proc / "self" / "ns" / "pid")
        self._held: dict[int, _Held] = {}

    def find(self, owner: int) -> int | None:
        """The number by which we know the process, as long as it lives or is held on to; None: it is gone."""
        held = self._held.get(owner)
        if held is None:
            pid = None if is_vague(owner) else self._search(word_of(owner))
            if pid is None:
                return None
            held = self._held[owner] = _Held(pid, _pidfd(pid))
            if not self._is(pid, word_of(owner)):  # the number was somebody else's by the time that we held it
                self.let_go(owner)
                return None
        return held.pid

    def is_alive(self, owner: int) -> bool:
        """Whether any thread of it is left. A zombie is not alive: the kernel has closed all that it had open."""
        pid = self.find(owner)
        if pid is None:
            return False
        held = self._held[owner]
        if held.pidfd < 0:
            return self._is(pid, word_of(owner))
        ended = select.poll()
        ended.register(held.pidfd, select.POLLIN)
        return not ended.poll(0)

    def state(self, owner: int) -> str:
        """As in /proc: R, S, D, T...; empty for one that is gone."""
        pid = self.find(owner)
        stat = None if pid is None else stat_of(pid, self._proc)
        return "" if stat is None else stat.state

    def was(self, owner: int, pid: int) -> bool:
        """Whether a process that is gone had this number, as far as we know its number."""
        held = self._held.get(owner)
        if held is not None:
            return held.pid == pid
        word = word_of(owner)
        return word.space == self._space and word.pid == pid

    def could_be(self, owner: int, pid: int) -> bool:
        """Whether what a device lists under this number may be this process, which is gone.

        A number that a living process has, and that is not this one, is not it. One that nobody has may be: the device
        is not done with it yet.
        """
        word = word_of(owner)
        held = self._held.get(owner)
        if held is not None:
            return held.pid == pid
        if word.space == self._space:
            return word.pid == pid
        return stat_of(pid, self._proc) is None

    def kill(self, owner: int) -> None:
        """End it, if it is still there, and nobody else."""
        if self.find(owner) is not None:
            held = self._held[owner]
            with contextlib.suppress(ProcessLookupError):
                if held.pidfd < 0:
                    os.kill(held.pid, signal.SIGKILL)
                else:
                    signal.pidfd_send_signal(held.pidfd, signal.SIGKILL)

    def let_go(self, owner: int) -> None:
        """Nobody will ask for it again."""
        held = self._held.pop(owner, None)
        if held is not None and held.pidfd >= 0:
            os.close(held.pidfd)

    def keep_only(self, owners: Iterable[int]) -> None:
        """Let go of all others."""
        kept = dict.fromkeys(owners)
        for owner in [owner for owner in self._held if owner not in kept]:
            self.let_go(owner)

    def _search(self, word: Word) -> int | None:
        if word.space == self._space:
            return word.pid if self._is(word.pid, word) else None
        for entry in self._proc.iterdir():
            if entry.name.isdigit() and self._is(int(entry.name), word):
                return int(entry.name)
        return None

    def _is(self, pid: int, word: Word) -> bool:
        """Whether the process of this number, as we count, is the one that the word means."""
        stat = stat_of(pid, self._proc)
        if stat is None or stat.start_ticks & ((1 << _START_BITS) - 1) != word.start:
            return False
        try:
            numbers = parse_numbers((self._proc / str(pid) / "status").read_bytes())
        except OSError:
            return False
        if not numbers or numbers[-1] & ((1 << _PID_BITS) - 1) != word.pid:
            return False
        space = _inode(self._proc / str(pid) / "ns" / "pid")
        return space in (None, word.space)  # of another user's process we may not see it; number and start must do


class _Held(NamedTuple):
    pid: int
    pidfd: int
    """-1: we have too many descriptors open; then number and start must do."""


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino & ((1 << _SPACE_BITS) - 1)
    except OSError:
        return None
