"""The identity of the process at the other end of a Unix socket, from the kernel and from /proc."""

from __future__ import annotations

import os
import select
import socket
import struct
from pathlib import Path
from typing import Final

from cotenant.node.model.peer import NO_DESCRIPTOR, PeerIdentity

_CREDENTIALS: Final = struct.Struct("3i")
_GROUP_BYTES: Final = 4
_GROUPS_LIMIT: Final = 65536  # NGROUPS_MAX of Linux
_SO_PEERGROUPS: Final = 59
_SO_PEERPIDFD: Final = 77  # since Linux 6.5
_NAMESPACES: Final = ("pid", "user")


def identify(connection: socket.socket) -> PeerIdentity:
    """Return the identity of the peer of a connected Unix socket; the caller closes it.

    What /proc says counts only if the process is still alive afterwards: its number cannot have been reused then.
    """
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    groups = _groups(connection)
    pidfd = _pidfd(connection, pid)
    if pidfd == NO_DESCRIPTOR:
        return PeerIdentity(pid, pidfd, uid, gid, "", True, groups)
    cgroup, is_foreign = cgroup_of(pid), _is_foreign(pid)
    if has_ended(pidfd):
        cgroup, is_foreign = "", True
    return PeerIdentity(pid, pidfd, uid, gid, cgroup, is_foreign, groups)


def has_ended(pidfd: int) -> bool:
    """Return whether the process of a pidfd has ended."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def cgroup_of(pid: int) -> str:
    """Return the path of a process in the unified cgroup hierarchy; empty if it cannot be read."""
    try:
        return parse_cgroup(Path(f"/proc/{pid}/cgroup").read_bytes())
    except OSError:
        return ""


def parse_cgroup(data: bytes) -> str:
    """Return the path in the unified cgroup hierarchy from /proc/PID/cgroup; empty if there is none.

    Without a unified hierarchy, the first one counts: a container has a directory in each. The kernel escapes newlines
    in names, but not the other characters at which `splitlines` ends a line.
    """
    lines = [line for line in data.decode(errors="replace").split("\n") if line]
    unified = [line.removeprefix("0::") for line in lines if line.startswith("0::")]
    return unified[0] if unified else (lines[0].split(":", 2)[-1] if lines else "")


def status_words(status: bytes, field: bytes) -> list[bytes]:
    """Return the words of a field of /proc/PID/status; none if it is missing.

    The first line holds the name, which the process chooses. The kernel escapes newlines in it, but not carriage
    returns, at which `splitlines` would end the line: a process could then supply any field.
    """
    lines = (line for line in status.split(b"\n") if line.startswith(field + b":"))
    return next(lines, b"").split()[1:]


def _groups(connection: socket.socket) -> tuple[int, ...]:
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_LIMIT * _GROUP_BYTES)
    except OSError:
        return ()
    return struct.unpack(f"={len(raw) // _GROUP_BYTES}I", raw[: len(raw) - len(raw) % _GROUP_BYTES])


def _pidfd(connection: socket.socket, pid: int) -> int:
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        pass
    if pid <= 0:
        return NO_DESCRIPTOR
    try:
        return os.pidfd_open(pid)
    except OSError:
        return NO_DESCRIPTOR


def _is_foreign(pid: int) -> bool:
    """Return whether a process is in another pid or user namespace than this one.

    The links in /proc/PID/ns of another user can be read by root only. Otherwise the process counts as native if it
    has one number only, in this pid namespace, and the same map of user ids.
    """
    if pid <= 0:
        return True
    try:
        return any(_namespace(str(pid), name) != _namespace("self", name) for name in _NAMESPACES)
    except PermissionError:
        return _numbers(str(pid)) != 1 or _uid_map(str(pid)) != _uid_map("self")
    except OSError:
        return True


def _namespace(process: str, name: str) -> tuple[int, int]:
    status = Path(f"/proc/{process}/ns/{name}").stat()
    return status.st_dev, status.st_ino


def _numbers(process: str) -> int:
    """Return in how many pid namespaces, from this one downwards, a process has a number."""
    try:
        return len(status_words(Path(f"/proc/{process}/status").read_bytes(), b"NSpid"))
    except OSError:
        return 0


def _uid_map(process: str) -> str | None:
    try:
        return Path(f"/proc/{process}/uid_map").read_text()
    except OSError:
        return None


def close_identity(peer: PeerIdentity) -> None:
    """Close the descriptor of a peer's process."""
    if peer.pidfd != NO_DESCRIPTOR:
        os.close(peer.pidfd)
