"""Find the process of a ledger line and whether it lives, also in containers.

A ledger identifies a process by a word (`ct_ledger_identity` of native/ledger/ledger.h) that is made of its number in
its own pid namespace, that namespace, and its start time. The number alone would soon be reused.
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
"""The states of a process that is stopped or traced."""


class ProcessIdentity(NamedTuple):
    """The parts of a process identity."""

    pid: int
    space: int
    start: int


def split_identity(owner: int) -> ProcessIdentity:
    """Split an identity into its parts, each truncated to its bits."""
    return ProcessIdentity(
        owner >> (_SPACE_BITS + _START_BITS) & ((1 << _PID_BITS) - 1),
        owner >> _START_BITS & ((1 << _SPACE_BITS) - 1),
        owner & ((1 << _START_BITS) - 1),
    )


def is_anonymous(owner: int) -> bool:
    """Return whether an identity has no namespace and start time: the process has no /proc and cannot be found."""
    identity = split_identity(owner)
    return not identity.space and not identity.start


def identity_of(pid: int, space_inode: int, start_ticks: int) -> int:
    """Return an identity as `ct_ledger_identity` computes it."""
    parts = ((pid, _PID_BITS), (space_inode, _SPACE_BITS), (start_ticks, _START_BITS))
    identity = 0
    for part, bits in parts:
        identity = identity << bits | part & ((1 << bits) - 1)
    return identity


class ProcessStat(NamedTuple):
    """State and start time of a process."""

    state: str
    start_ticks: int


def stat_of(pid: int, proc: Path = _PROC) -> ProcessStat | None:
    """Return the state and start time of a process; None if there is none."""
    try:
        text = (proc / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    return parse_stat(text)


def parse_stat(text: bytes) -> ProcessStat | None:
    """Parse /proc/PID/stat; the name may contain parentheses and spaces, so parse after the last parenthesis."""
    fields = text.rpartition(b")")[2].split()
    if len(fields) <= _START_FIELD or not fields[_START_FIELD].isdigit():
        return None
    return ProcessStat(fields[_STATE_FIELD].decode("ascii", "replace"), int(fields[_START_FIELD]))


def parse_numbers(status: bytes) -> tuple[int, ...]:
    """Return a process's numbers in its namespaces, the outermost first; empty if they cannot be read."""
    for line in status.splitlines():
        if line.startswith(b"NSpid:"):
            words = line.split()[1:]
            return tuple(map(int, words)) if all(identity.isdigit() for identity in words) else ()
    return ()


class ProcessTable:
    """Finds processes by identity and keeps a pidfd of each, which never refers to another process."""

    def __init__(self, proc: Path = _PROC) -> None:
        """Use this proc filesystem."""
        self._proc = proc
        self._space = _inode(proc / "self" / "ns" / "pid")
        self._handles: dict[int, _ProcessHandle] = {}

    def find(self, owner: int) -> int | None:
        """Return the process number in this namespace; None if the process is gone."""
        handle = self._handles.get(owner)
        if handle is None:
            pid = None if is_anonymous(owner) else self._search(split_identity(owner))
            if pid is None:
                return None
            handle = self._handles[owner] = _ProcessHandle(pid, _pidfd(pid))
            if not self._matches(pid, split_identity(owner)):  # the number was reused before the pidfd was opened
                self.release(owner)
                return None
        return handle.pid

    def is_alive(self, owner: int) -> bool:
        """Return whether any thread of the process is left; a zombie is dead, as the kernel has closed its files."""
        pid = self.find(owner)
        if pid is None:
            return False
        handle = self._handles[owner]
        if handle.pidfd < 0:
            return self._matches(pid, split_identity(owner))
        poller = select.poll()
        poller.register(handle.pidfd, select.POLLIN)
        return not poller.poll(0)

    def state(self, owner: int) -> str:
        """Return the state as in /proc (R, S, D, T...); empty if the process is gone."""
        pid = self.find(owner)
        stat = None if pid is None else stat_of(pid, self._proc)
        return "" if stat is None else stat.state

    def had_pid(self, owner: int, pid: int) -> bool:
        """Return whether an ended process had this number, as far as the number is known."""
        handle = self._handles.get(owner)
        if handle is not None:
            return handle.pid == pid
        identity = split_identity(owner)
        return identity.space == self._space and identity.pid == pid

    def could_be(self, owner: int, pid: int) -> bool:
        """Return whether a number that a device lists may be this ended process.

        A number that another live process has is not. A number without a process may be: the device may still list
        a process that has ended.
        """
        identity = split_identity(owner)
        handle = self._handles.get(owner)
        if handle is not None:
            return handle.pid == pid
        if identity.space == self._space:
            return identity.pid == pid
        return stat_of(pid, self._proc) is None

    def kill(self, owner: int) -> None:
        """Kill the process if it still lives."""
        if self.find(owner) is not None:
            handle = self._handles[owner]
            with contextlib.suppress(ProcessLookupError):
                if handle.pidfd < 0:
                    os.kill(handle.pid, signal.SIGKILL)
                else:
                    signal.pidfd_send_signal(handle.pidfd, signal.SIGKILL)

    def release(self, owner: int) -> None:
        """Close the pidfd of a process."""
        handle = self._handles.pop(owner, None)
        if handle is not None and handle.pidfd >= 0:
            os.close(handle.pidfd)

    def keep_only(self, owners: Iterable[int]) -> None:
        """Release all other processes."""
        wanted = dict.fromkeys(owners)
        for owner in [owner for owner in self._handles if owner not in wanted]:
            self.release(owner)

    def _search(self, identity: ProcessIdentity) -> int | None:
        if identity.space == self._space:
            return identity.pid if self._matches(identity.pid, identity) else None
        for entry in self._proc.iterdir():
            if entry.name.isdigit() and self._matches(int(entry.name), identity):
                return int(entry.name)
        return None

    def _matches(self, pid: int, identity: ProcessIdentity) -> bool:
        """Return whether the process of this number has this identity."""
        stat = stat_of(pid, self._proc)
        if stat is None or stat.start_ticks & ((1 << _START_BITS) - 1) != identity.start:
            return False
        try:
            numbers = parse_numbers((self._proc / str(pid) / "status").read_bytes())
        except OSError:
            return False
        if not numbers or numbers[-1] & ((1 << _PID_BITS) - 1) != identity.pid:
            return False
        space = _inode(self._proc / str(pid) / "ns" / "pid")
        return space in (
            None,
            identity.space,
        )  # the namespace of another user's process may be unreadable; number and start then decide


class _ProcessHandle(NamedTuple):
    pid: int
    pidfd: int
    """-1: no descriptor was available; number and start then decide."""


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
