"""The processes of this machine as /proc shows them: parents, start times, states and cgroups."""

from __future__ import annotations

import contextlib
import os
import re
import select
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from cotenant.node.peer import parse_cgroup, status_words

STOPPED: Final = ("T", "t")
"""The states of a process that is stopped or traced."""
ENDED: Final = ("Z", "X", "x")
"""The states of a process that has ended: it has no memory and no files any more."""
_STATE, _PARENT, _GROUP, _START = 0, 1, 2, 19  # after the name in brackets, which may hold anything: fields 3, 4, 5, 22
_LATEST: Final = 4
"""The word of /proc/loadavg with the number of the latest task."""
_DEPTH_LIMIT: Final = 1024
"""More generations than any process has; a limit in case that /proc changes during the walk."""
_PROCESSES_LIMIT: Final = 1 << 16
_CONTAINER: Final = re.compile(
    r"^(?:[a-z0-9._-]+-)?[0-9a-f]{32,64}(?:\.scope)?$|^lxc\.payload\..+$|^machine-.+\.scope$|^snap\.lxd\..+$"
)
"""The directory of one container in the cgroups of Docker, Podman, containerd, CRI-O, LXC and systemd-nspawn."""


_POD: Final = re.compile(
    r"^(?:[A-Za-z0-9._]+-)*pod(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?$"
)
"""The directory of a Kubernetes pod, as the kubelet names it with either cgroup driver; systemd's has underscores.

A static pod has a hash of 32 digits instead of a uid.
"""


class ProcessStat(NamedTuple):
    """State, parent, process group and start time of a process."""

    state: str
    parent: int
    group: int
    start_ticks: int


class TaskCount(NamedTuple):
    """What two readings have in common only if no process and no thread was created or ended between them."""

    tasks: bytes
    """The existing ones."""
    latest: bytes
    """The number of the latest one."""


def parse_stat(text: bytes) -> ProcessStat | None:
    """Parse /proc/PID/stat; the name may contain parentheses and spaces, so parse after the last parenthesis."""
    fields = text.rpartition(b")")[2].split()
    numbers = [fields[index] for index in (_PARENT, _GROUP, _START)] if len(fields) > _START else []
    if not numbers or not all(number.isdigit() for number in numbers):
        return None
    parent, group, start = map(int, numbers)
    return ProcessStat(fields[_STATE].decode("ascii", "replace"), parent, group, start)


def parse_numbers(status: bytes) -> tuple[int, ...]:
    """Return a process's numbers in its namespaces, the outermost first; empty if they cannot be read."""
    words = status_words(status, b"NSpid")
    return tuple(map(int, words)) if all(identity.isdigit() for identity in words) else ()


def container_of(cgroup: str) -> str:
    """Return the directory of the container in a cgroup path; empty if the path is not in a container."""
    parts = cgroup.split("/")
    for depth in range(len(parts), 0, -1):
        if _CONTAINER.match(parts[depth - 1]):
            return "/".join(parts[:depth])
    return ""


def pod_of(cgroup: str) -> str:
    """Return the uid of the Kubernetes pod in a cgroup path; empty if the path is not in a pod.

    The outermost directory counts: a container may be allowed to create directories below its own.
    """
    found = (match["uid"] for part in cgroup.split("/") if (match := _POD.match(part)) is not None)
    return next(found, "").replace("_", "-")


def pidfd_of(pid: int) -> int | None:
    """Return a pidfd of a process; None if there is none, or no descriptor is free."""
    try:
        return os.pidfd_open(pid)
    except (OSError, ValueError):
        return None


def has_ended(pidfd: int) -> bool:
    """Return whether the process of a pidfd has ended; a zombie has, as the kernel has closed its files."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def _read(path: str) -> bytes:
    """Return the contents of a file without the cost of `Path`: with many tenants, hundreds are read per second."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = b""
        while part := os.read(descriptor, 1 << 16):
            data += part
        return data
    finally:
        os.close(descriptor)


class ProcessTree:
    """Reads a proc filesystem and the unified cgroup hierarchy."""

    def __init__(self, proc: Path = Path("/proc"), cgroups: Path | None = None) -> None:
        """Use these mount points; without `cgroups`, the usual ones."""
        self._proc = proc
        if cgroups is None:
            mounts = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
            cgroups = next((mount for mount in mounts if (mount / "cgroup.controllers").exists()), mounts[0])
        self.cgroups = cgroups

    def stat(self, pid: int) -> ProcessStat | None:
        """Return what /proc says about a process; None if there is none."""
        try:
            return parse_stat(_read(f"{self._proc}/{pid}/stat"))
        except OSError:
            return None

    def task_count(self) -> TaskCount | None:
        """Return the number of tasks and the latest one in this pid namespace; None if they cannot be read."""
        try:
            words = _read(f"{self._proc}/loadavg").split()
        except OSError:
            return None
        existing = words[3].partition(b"/")[2] if len(words) > _LATEST else b""
        return TaskCount(existing, words[_LATEST]) if existing else None

    def cgroup(self, pid: int) -> str:
        """Return the path of a process in the unified cgroup hierarchy; empty if it cannot be read."""
        try:
            return parse_cgroup((self._proc / str(pid) / "cgroup").read_bytes())
        except OSError:
            return ""

    def owner(self, pid: int) -> int | None:
        """Return the effective user of a process; None if there is none."""
        try:
            users = status_words((self._proc / str(pid) / "status").read_bytes(), b"Uid")
        except OSError:
            return None
        return int(users[1]) if len(users) > 1 and users[1].isdigit() else None

    def own_number(self, pid: int) -> int:
        """Return the number that a process has in its own pid namespace; 0 if it cannot be read."""
        try:
            return (parse_numbers((self._proc / str(pid) / "status").read_bytes()) or (0,))[-1]
        except OSError:
            return 0

    def ancestors(self, pid: int) -> Iterator[tuple[int, ProcessStat]]:
        """Yield a process and its ancestors, nearest first.

        A number that was reused is not an ancestor: a parent started no later than its child, and a child whose parent
        has ended has another parent by then.
        """
        stat = self.stat(pid)
        for _ in range(_DEPTH_LIMIT):
            if stat is None:
                return
            yield pid, stat
            parent = self.stat(stat.parent) if stat.parent > 0 else None
            if parent is None or parent.start_ticks > stat.start_ticks:
                return
            after = self.stat(pid)
            if after is None or after.start_ticks != stat.start_ticks:
                return
            if after.parent != stat.parent:  # the parent ended meanwhile
                stat = after
                continue
            pid, stat = stat.parent, parent

    def descendants(self, roots: Iterable[int]) -> list[int]:
        """Return the descendants of these processes that live now, parents before their children."""
        found: dict[int, None] = {}
        pending = list(roots)
        for parent in pending:
            for child in self.children(parent):
                if child not in found and len(found) < _PROCESSES_LIMIT:
                    found[child] = None
                    pending.append(child)
        return list(found)

    def is_stopped(self, pid: int) -> bool:
        """Return whether a process is stopped or has ended."""
        stat = self.stat(pid)
        return stat is None or stat.state in (*STOPPED, *ENDED)

    def processes_in(self, cgroup: str) -> list[int]:
        """Return the processes of a cgroup and of the cgroups below it."""
        directory = self.cgroups / cgroup.lstrip("/")
        pids: list[int] = []
        with contextlib.suppress(OSError):
            for file in (directory / "cgroup.procs", *directory.rglob("*/cgroup.procs")):
                with contextlib.suppress(OSError, ValueError):
                    pids += map(int, file.read_text().split())
        return pids

    def children(self, pid: int) -> list[int]:
        """Return the children of a process."""
        children: list[int] = []
        directory = f"{self._proc}/{pid}/task"
        with contextlib.suppress(OSError):
            for task in os.listdir(directory):  # noqa: PTH208  as for `_read`
                with contextlib.suppress(OSError, ValueError):
                    children += map(int, _read(f"{directory}/{task}/children").split())
        return children
