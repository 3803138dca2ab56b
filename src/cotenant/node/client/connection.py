"""The client side of the node's socket: requests with answers, and messages that the node pushes to a tenant."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
from pathlib import Path
from typing import Final, Self

from cotenant.errors import ConfigError, PeerError, SetupError, WorldError
from cotenant.node import wire
from cotenant.node.directories import Directories
from cotenant.node.model.admission import Reason, Reject
from cotenant.node.model.tenant import TenantSpec
from cotenant.runner.clock import monotonic_ns
from cotenant.units.instant import SECOND_NS, Duration
from cotenant.units.text import format_duration

TIMEOUT_S: Final = 10.0
"""The default timeout of an answer."""
_TIMEVAL: Final = struct.Struct("@ll")
DESCRIPTORS_LIMIT: Final = 3
"""Descriptors of an `attached`: the grant page, and the tenant table and the arbitration page of the device."""
_NOT_OPERATOR: Final = (
    "only operators of the node may do this: the user that runs it, and those that its config names under [operators]"
)
_NO_ANSWER: Final = "the node does not answer; see its log, or restart it"
_DESCRIPTOR_BYTES: Final = array.array("i").itemsize


class NodeUnavailableError(WorldError):
    """No node answers at the socket."""


FINAL_REASONS: Final = (Reason.NOT_ALLOWED, Reason.NOT_YOURS, Reason.UNKNOWN_GPU, Reason.BAD_FIELD)
"""Refusals of requests that would be refused again: the user must change the request."""


class NotPermittedError(SetupError):
    """The caller may not connect to the socket, or may not do there what it asks."""


class NodeTimeoutError(WorldError):
    """The node has not answered in time; the answer may still come."""


class Connection:
    """A connection to a node."""

    def __init__(self, path: Path, timeout_s: float = TIMEOUT_S) -> None:
        """Connect, or raise `NodeUnavailableError`; `timeout_s` limits the wait for an answer."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._frames = wire.Frames(wire.ANSWER_LIMIT_BYTES)
        self._answers: list[bytes] = []
        self._pushed: list[wire.Push] = []  # messages that arrived before an answer
        self._descriptors: list[int] = []  # descriptors of an answer that is not complete yet
        try:
            self._connect(str(path), timeout_s)
        except PermissionError:
            self._socket.close()
            raise NotPermittedError(f"you may not connect to {path}; ask the user that runs the node") from None
        except BlockingIOError:
            self._socket.close()
            raise WorldError(f"the node at {path} accepts no connections; see its log, or restart it") from None
        except OSError as error:
            self._socket.close()
            raise NodeUnavailableError(
                f"no node answers at {path} ({error.strerror}); start one with: cotenant node"
            ) from None
        self._socket.settimeout(timeout_s)

    def _connect(self, path: str, timeout_s: float) -> None:
        deadline_ns = monotonic_ns() + int(timeout_s * SECOND_NS)
        while True:
            # With Python's own timeout `connect` fails at once if the backlog is full; with the kernel's it waits.
            remaining_us = max(1, (deadline_ns - monotonic_ns()) // 1000)
            self._socket.setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(*divmod(remaining_us, 1_000_000))
            )
            self._socket.connect(path)
            # A signal ends that wait, and Python then treats the socket as connected although it is not.
            with contextlib.suppress(OSError):
                self._socket.getpeername()
                return
            if monotonic_ns() >= deadline_ns:
                raise BlockingIOError

    def fileno(self) -> int:
        """Return the descriptor that is readable when a message arrives or the connection closes."""
        return self._socket.fileno()

    def set_timeout(self, timeout_s: float) -> None:
        """Set the timeout of an answer."""
        self._socket.settimeout(timeout_s)

    def ask(self, request: wire.Request) -> tuple[wire.Answer, list[int]]:
        """Send a request and return the answer with the descriptors sent with it.

        Raises `NodeUnavailableError` if the node dies meanwhile. Messages that the node pushes meanwhile are kept for
        `receive_pushed`.
        """
        self.send(request)
        return self.answer()

    def send(self, request: wire.Request) -> None:
        """Send a message without waiting for an answer."""
        try:
            self._socket.sendall(wire.encode(request))
        except TimeoutError:
            raise NodeTimeoutError(_NO_ANSWER) from None
        except OSError as error:
            raise NodeUnavailableError(f"the connection to the node was lost: {error.strerror or error}") from None

    def answer(self) -> tuple[wire.Answer, list[int]]:
        """Return the next answer."""
        while True:
            while not self._answers:
                self._read()
            answer = self._next()
            if not isinstance(answer, wire.Push):
                descriptors, self._descriptors = self._descriptors, []
                return answer, descriptors
            self._pushed.append(answer)

    def receive_pushed(self, *, readable: bool = False) -> list[wire.Push]:
        """Return the messages that the node pushed; read new ones if the socket is readable. Raises as `ask` does."""
        if readable:
            self._read()
        while self._answers:
            message = self._next()
            if not isinstance(message, wire.Push):
                raise PeerError(f"the node sent an unexpected {type(message).__name__}")
            self._pushed.append(message)
        pushed, self._pushed = self._pushed, []
        return pushed

    def _next(self) -> wire.Answer:
        message = wire.decode_answer(self._answers.pop(0))
        if isinstance(message, wire.ProtocolViolation):
            raise PeerError(f"the node closed the connection: {message.detail}")
        return message

    def _read(self) -> None:
        try:
            data, received = self._receive()
        except TimeoutError:
            raise NodeTimeoutError(_NO_ANSWER) from None
        except OSError as error:
            raise NodeUnavailableError(f"the connection to the node was lost: {error.strerror or error}") from None
        self._descriptors += received
        self._answers += self._frames.feed(data)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
        while self._descriptors:
            os.close(self._descriptors.pop())

    def __enter__(self) -> Self:
        """Return the connection."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the connection."""
        self.close()

    def _receive(self) -> tuple[bytes, list[int]]:
        budget = socket.CMSG_SPACE((DESCRIPTORS_LIMIT + 1) * _DESCRIPTOR_BYTES)
        data, ancillary, _, _ = self._socket.recvmsg(1 << 16, budget, socket.MSG_CMSG_CLOEXEC)
        if not data:
            raise ConnectionResetError(104, "its end of the connection closed")
        received = array.array("i")
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received.frombytes(content[: len(content) - len(content) % _DESCRIPTOR_BYTES])
        for surplus in received[DESCRIPTORS_LIMIT:]:
            with contextlib.suppress(OSError):
                os.close(surplus)
        return data, received[:DESCRIPTORS_LIMIT].tolist()


def ask_node(directories: Directories, request: wire.Request, timeout_s: float = TIMEOUT_S) -> wire.Answer:
    """Ask as an operator, or as an ordinary user if the caller is none; a container may have only the tenant socket."""
    try:
        with Connection(directories.operator_socket, timeout_s) as connection:
            answer, _ = connection.ask(request)
        if not _is_forbidden(answer):
            return answer
    except NotPermittedError:
        pass
    except NodeUnavailableError:
        if directories.operator_socket.exists():
            raise
    with Connection(directories.tenant_socket, timeout_s) as connection:
        answer, _ = connection.ask(request)
    return answer


def list_tenants(directories: Directories, timeout_s: float = TIMEOUT_S) -> wire.TenantList:
    """Return the tenants of the node that the caller may see."""
    answer = ask_node(directories, wire.ListTenants(wire.VERSION), timeout_s)
    if not isinstance(answer, wire.TenantList):
        raise PeerError(f"the node answered {type(answer).__name__} to a list request")
    return answer


def read_activity(directories: Directories, timeout_s: float = TIMEOUT_S) -> wire.Activity:
    """Return the counters of the gates and ledgers of the tenants that the caller may see."""
    answer = ask_node(directories, wire.GetSnapshot(wire.VERSION), timeout_s)
    if not isinstance(answer, wire.Activity):
        raise PeerError(f"the node answered {type(answer).__name__} to a request for a snapshot")
    return answer


def own_grant(socket_path: Path) -> wire.OwnGrantAnswer:
    """Return the tenant that this process belongs to, with its grant; raise `ConfigError` outside a tenant."""
    with Connection(socket_path) as connection:
        answer, _ = connection.ask(wire.OwnGrant(wire.VERSION))
    match answer:
        case wire.OwnGrantAnswer():
            return answer
        case wire.Refusal(reject=Reject(detail=detail)):
            raise ConfigError("COTENANT_SOCKET", str(socket_path), detail)
    raise PeerError(f"the node answered {type(answer).__name__} to a request for the own grant")


def issue_token(directories: Directories, spec: TenantSpec, valid_ns: Duration) -> str:
    """Return a token with which one program may join with this spec."""
    answer = ask_as_operator(directories, wire.IssueToken(wire.VERSION, spec, valid_ns))
    match answer:
        case wire.Token(token=token):
            return token
        case wire.Refusal(reject=reject):
            raise WorldError(f"the node refused: {reject.detail}")
    raise PeerError(f"the node answered {type(answer).__name__} to a request for a token")


def ask_as_operator(directories: Directories, request: wire.OperatorRequest) -> wire.Answer:
    """Ask at the operators' socket; raise `NotPermittedError` with one sentence for everybody else."""
    try:
        with Connection(directories.operator_socket) as connection:
            answer, _ = connection.ask(request)
    except NotPermittedError:
        raise NotPermittedError(_NOT_OPERATOR) from None
    except NodeUnavailableError:
        if directories.operator_socket.exists() or not directories.tenant_socket.exists():
            raise
        raise NotPermittedError(_NOT_OPERATOR) from None  # a container that has only the tenant socket
    if isinstance(answer, wire.Refusal) and _is_forbidden(answer):
        raise NotPermittedError(answer.reject.detail)
    return answer


def _is_forbidden(answer: wire.Answer) -> bool:
    return isinstance(answer, wire.Refusal) and answer.reject.reason is Reason.NOT_ALLOWED


def send_command(directories: Directories, request: wire.Command, names: str) -> wire.Confirmation:
    """Send a command and return the confirmation; raise `ConfigError` for an unknown tenant.

    An objective for an offline tenant raises `ConfigError` too, since the command is wrong; other refusals raise
    `WorldError`.
    """
    answer = ask_as_operator(directories, request)
    match answer:
        case wire.Confirmation():
            return answer
        case wire.Refusal(reject=Reject(reason=Reason.UNKNOWN_TENANT, detail=detail)):
            raise ConfigError("NAME", names, detail)
        case wire.Refusal(reject=Reject(reason=Reason.NO_OBJECTIVE, detail=detail)):
            slo_ns = request.slo_ns if isinstance(request, wire.SetObjective) else 0
            raise ConfigError("--slo", format_duration(slo_ns), detail)
        case wire.Refusal(reject=reject):
            failure = WorldError(f"the node refused: {reject.detail}")
            if reject.reason in FINAL_REASONS:
                failure.exit_code = ConfigError.exit_code
            raise failure
    raise PeerError(f"the node answered {type(answer).__name__} to a command")
