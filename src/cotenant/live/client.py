"""How does a program talk to the node? One request, one answer, and what the node tells a tenant unasked."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
from pathlib import Path
from typing import Final, Self

from cotenant.domain.instant import SECOND_NS
from cotenant.domain.plan import Reason, Reject
from cotenant.errors import ConfigError, PeerError, WorldError
from cotenant.format import wire
from cotenant.format.quantity import format_duration
from cotenant.live.clock import monotonic_ns

TIMEOUT_S: Final = 10.0
"""How long an answer may take, unless somebody is in a hurry."""
_TIMEVAL: Final = struct.Struct("@ll")
HANDED: Final = 5
"""Descriptors that come with a welcome: the terms page; a device's gate and its ledger, each to read and to write."""
_SILENT: Final = "the node does not answer; see its log, or restart it"
_DESCRIPTOR_BYTES: Final = array.array("i").itemsize


class NodeAwayError(WorldError):
    """Nobody answers at the node's socket."""


class NodeSilentError(WorldError):
    """The node has not answered in time; what was asked may still be answered."""


class Connection:
    """One conversation with a node."""

    def __init__(self, path: Path, timeout_s: float = TIMEOUT_S) -> None:
        """Connect, or raise `NodeAwayError`; no answer may take longer than the timeout."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._frames = wire.Frames(wire.ANSWER_LIMIT_BYTES)
        self._answers: list[bytes] = []
        self._pushed: list[wire.Push] = []  # what came before an answer
        self._handed: list[int] = []  # descriptors that came with an answer that is not complete yet
        try:
            self._connect(str(path), timeout_s)
        except PermissionError:
            self._socket.close()
            raise WorldError(
                f"you may not connect to {path}; ask its owner to set node.group to a group of yours"
            ) from None
        except BlockingIOError:
            self._socket.close()
            raise WorldError(f"the node at {path} takes no connections; see its log, or restart it") from None
        except OSError as error:
            self._socket.close()
            raise NodeAwayError(
                f"no node answers at {path} ({error.strerror}); start one with: cotenant node"
            ) from None
        self._socket.settimeout(timeout_s)

    def _connect(self, path: str, timeout_s: float) -> None:
        deadline_ns = monotonic_ns() + int(timeout_s * SECOND_NS)
        while True:
            # Under Python's own timeout it fails at once if the backlog is full; under the kernel's it waits.
            left_us = max(1, (deadline_ns - monotonic_ns()) // 1000)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(*divmod(left_us, 1_000_000)))
            self._socket.connect(path)
            # A signal ends that wait, and Python takes the socket for connected though it is not.
            with contextlib.suppress(OSError):
                self._socket.getpeername()
                return
            if monotonic_ns() >= deadline_ns:
                raise BlockingIOError

    def fileno(self) -> int:
        """For waiting until the node says something, or goes away."""
        return self._socket.fileno()

    def hurry(self, timeout_s: float) -> None:
        """From now on an answer may not take longer than this."""
        self._socket.settimeout(timeout_s)

    def ask(self, request: wire.Request) -> tuple[wire.Answer, list[int]]:
        """The answer and the descriptors that came along; raises `NodeAwayError` when the node dies meanwhile.

        What the node says unasked is kept for `pushed`.
        """
        self.tell(request)
        return self.answer()

    def tell(self, request: wire.Request) -> None:
        """Say something without waiting for the answer, if it has one."""
        try:
            self._socket.sendall(wire.encode(request))
        except TimeoutError:
            raise NodeSilentError(_SILENT) from None
        except OSError as error:
            raise NodeAwayError(f"the node went away: {error.strerror or error}") from None

    def answer(self) -> tuple[wire.Answer, list[int]]:
        """The next answer."""
        while True:
            while not self._answers:
                self._read()
            answer = self._next()
            if not isinstance(answer, wire.Push):
                handed, self._handed = self._handed, []
                return answer, handed
            self._pushed.append(answer)

    def pushed(self, *, readable: bool = False) -> list[wire.Push]:
        """What the node said unasked; when the socket is readable, also what comes now. Raises as `ask` does."""
        if readable:
            self._read()
        while self._answers:
            said = self._next()
            if not isinstance(said, wire.Push):
                raise PeerError(f"the node said {type(said).__name__} unasked")
            self._pushed.append(said)
        pushed, self._pushed = self._pushed, []
        return pushed

    def _next(self) -> wire.Answer:
        said = wire.decode_answer(self._answers.pop(0))
        if isinstance(said, wire.Wrong):
            raise PeerError(f"the node refuses to talk: {said.detail}")
        return said

    def _read(self) -> None:
        try:
            data, received = self._receive()
        except TimeoutError:
            raise NodeSilentError(_SILENT) from None
        except OSError as error:
            raise NodeAwayError(f"the node went away: {error.strerror or error}") from None
        self._handed += received
        self._answers += self._frames.feed(data)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()
        while self._handed:
            os.close(self._handed.pop())

    def __enter__(self) -> Self:
        """For a single question."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Hang up."""
        self.close()

    def _receive(self) -> tuple[bytes, list[int]]:
        room = socket.CMSG_SPACE((HANDED + 1) * _DESCRIPTOR_BYTES)
        data, ancillary, _, _ = self._socket.recvmsg(1 << 16, room, socket.MSG_CMSG_CLOEXEC)
        if not data:
            raise ConnectionResetError(104, "its end of the connection closed")
        received = array.array("i")
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received.frombytes(content[: len(content) - len(content) % _DESCRIPTOR_BYTES])
        for extra in received[HANDED:]:
            with contextlib.suppress(OSError):
                os.close(extra)
        return data, received[:HANDED].tolist()


def tenants_of(path: Path, timeout_s: float = TIMEOUT_S) -> wire.Tenants:
    """Who is on the node."""
    with Connection(path, timeout_s) as connection:
        answer, _ = connection.ask(wire.List(wire.VERSION))
    if not isinstance(answer, wire.Tenants):
        raise PeerError(f"the node answered {type(answer).__name__} to a question of who is there")
    return answer


def wish(path: Path, request: wire.Wish, names: str) -> wire.Confirmed:
    """Have something changed while the node runs; raises `ConfigError` when nobody has one of the names.

    Or when an objective is for an offline tenant: that is a mistake in what was asked, as other refusals are not.
    """
    with Connection(path) as connection:
        answer, _ = connection.ask(request)
    match answer:
        case wire.Confirmed():
            return answer
        case wire.Refused(reject=Reject(reason=Reason.UNKNOWN_TENANT, detail=detail)):
            raise ConfigError("NAME", names, detail)
        case wire.Refused(reject=Reject(reason=Reason.NO_OBJECTIVE, detail=detail)):
            slo_ns = request.slo_ns if isinstance(request, wire.SetObjective) else 0
            raise ConfigError("--slo", format_duration(slo_ns), detail)
        case wire.Refused(reject=reject):
            raise WorldError(f"the node refused: {reject.detail}")
    raise PeerError(f"the node answered {type(answer).__name__} to a wish")
