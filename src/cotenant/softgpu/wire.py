"""Requests of Python to a device server that need no ring: counters, faults, shutdown."""

from __future__ import annotations

import json
import os
import socket
import struct
from pathlib import Path
from typing import Any, NamedTuple

from cotenant.errors import PeerError, WorldError

# struct sg_request of native/softgpu/wire.h: kind, reserved, a, b, c.
_REQUEST = struct.Struct("=IIQQQ")
_REPORT = 14
_TIME_SLICE = 50
_SHUTDOWN = 15
_REFUSED = 100
_NOT_PERMITTED = 800  # CUDA_ERROR_NOT_PERMITTED
_TRACE = 44
GROUP_OPEN = 21
COMPUTE_MODE = 22
GROUP_ADMIT = 24
GROUP_STATE = 25
GROUP_STRIKE = 26
NEWS = 2
"""Value of `behind` in a notification to an MPS server."""
# struct sg_reply: result, behind, a, b, c, a batch of 32 handles.
_REPLY = struct.Struct("=iIQQQ128s")
_BATCH = struct.Struct("=32I")


class Reply(NamedTuple):
    """Answer of the server to one request."""

    result: int
    behind: int
    a: int
    b: int
    c: int
    batch: bytes


def _permitted(reply: Reply) -> Reply:
    """Return an answer; raise `WorldError` if it says that this user may not do what was asked."""
    if (reply.result, reply.a) == (_REFUSED, _NOT_PERMITTED):
        raise WorldError("only the user that created a software GPU may change or end it")
    return reply


def handles(batch: bytes) -> tuple[int, ...]:
    """Return a batch as numbers."""
    return _BATCH.unpack(batch)


def connect(path: Path, *, timeout_s: float = 10.0) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.settimeout(timeout_s)
    try:
        line.connect(str(path))
    except OSError as error:
        line.close()
        raise WorldError(f"no device server answers at {path}: {error.strerror}") from error
    return line


def ask(path: Path, kind: int, *numbers: int, timeout_s: float = 10.0) -> tuple[int, int]:
    """Send a request and return the result (enum ct_device_result) and the first number of the answer."""
    answer, _ = _ask(path, kind, timeout_s, *numbers)
    return answer.result, answer.a


def _ask(path: Path, kind: int, timeout_s: float, *numbers: int) -> tuple[Reply, bytes]:
    """Return the answer, and the content of the file that came with it; empty without one."""
    words = (*numbers, 0, 0, 0)[:3]
    with connect(path, timeout_s=timeout_s) as line:
        try:
            line.send(_REQUEST.pack(kind, 0, *words))
            answer, descriptors, _, _ = socket.recv_fds(line, _REPLY.size, 1)
        except OSError as error:
            raise WorldError(f"the device server at {path} does not answer: {error}") from error
    try:
        if len(answer) != _REPLY.size:
            raise WorldError(f"the device server at {path} sent {len(answer)} bytes instead of a reply")
        reply = _permitted(Reply(*_REPLY.unpack(answer)))
        return reply, os.pread(descriptors[0], reply.a, 0) if descriptors else b""
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def exchange(line: socket.socket, kind: int, a: int = 0, b: int = 0, c: int = 0) -> Reply:
    """Send a request on an open connection and return its answer."""
    try:
        line.send(_REQUEST.pack(kind, 0, a, b, c))
    except OSError as error:
        raise WorldError(f"the device server does not answer: {error}") from error
    return receive(line)


def receive(line: socket.socket) -> Reply:
    """Return the next answer on a connection."""
    try:
        answer = line.recv(_REPLY.size)
    except OSError as error:
        raise WorldError(f"the device server does not answer: {error}") from error
    if len(answer) != _REPLY.size:
        raise WorldError(f"the device server sent {len(answer)} bytes instead of a reply")
    return _permitted(Reply(*_REPLY.unpack(answer)))


def compute_mode(path: Path, mode: int | None = None) -> int:
    """Return the compute mode of a software GPU, after setting it if one is given."""
    result, number = ask(path, COMPUTE_MODE, int(mode is not None), mode or 0)
    if result != 0:
        raise PeerError(f"the device server at {path} does not know compute mode {mode}")
    return number


def time_slice(path: Path, slice_ns: int = 0) -> int:
    """Return the length of a software GPU's time slices, after setting it unless it is 0."""
    result, in_effect_ns = ask(path, _TIME_SLICE, slice_ns)
    if result != 0:
        raise PeerError(f"the device server at {path} refused time slices of {slice_ns} ns")
    return in_effect_ns


def report(path: Path, *, timeout_s: float = 10.0) -> dict[str, Any]:
    """Return the counters of a software GPU."""
    _, answer = _ask(path, _REPORT, timeout_s)
    try:
        counters = json.loads(answer)
    except ValueError as error:
        raise PeerError(f"the device server at {path} did not send JSON: {answer[:80]!r}") from error
    if not isinstance(counters, dict):
        raise PeerError(f"the device server at {path} did not send a report: {answer[:80]!r}")
    return counters


def trace(path: Path, after: int, *, timeout_s: float = 10.0) -> tuple[bytes, int, int]:
    """Return records from number `after` on, the number of the first, and the number of the next."""
    reply, records = _ask(path, _TRACE, timeout_s, after)
    return records, reply.b, reply.c


def shut_down(path: Path, *, timeout_s: float = 5.0) -> None:
    """Stop the server; returns when it has confirmed."""
    _ask(path, _SHUTDOWN, timeout_s)
