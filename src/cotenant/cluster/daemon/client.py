"""Synchronous client of the controller: one connection, one request at a time, with a timeout."""

from __future__ import annotations

import socket
import ssl
from typing import Final, Self, TypeVar

from cotenant.cluster import wire
from cotenant.cluster.daemon.identity import (
    Identity,
    check_controller,
    client_context,
    unauthenticated_context,
    why_not,
)
from cotenant.errors import ConfigError, PeerError, WorldError
from cotenant.node.model.admission import Reason
from cotenant.runner.address import split_address
from cotenant.runner.clock import unix_ns

_TIMEOUT_S: Final = 20.0
_READ_BYTES: Final = 64 << 10
A = TypeVar("A")


class ControllerUnreachableError(WorldError):
    """The controller does not answer."""


class Conversation:
    """Sends requests and waits for answers."""

    def __init__(
        self, controller: str, context: ssl.SSLContext, identity: Identity | None, *, is_trusted: bool
    ) -> None:
        """Connect, or raise; `is_trusted` is whether the other end must show that it is the controller."""
        self._controller = controller
        self._identity = identity
        self._frames = wire.answer_frames()
        self._answers: list[bytes] = []
        host, port = split_address(controller, "controller")
        try:
            bare = socket.create_connection((host, port), _TIMEOUT_S)
        except OSError as error:
            why = error.strerror or str(error)
            raise ControllerUnreachableError(
                f"no controller answers at {controller} ({why}); start one with: cotenant cluster start"
            ) from None
        try:
            self._socket = context.wrap_socket(bare)
            if is_trusted:
                check_controller(self._socket)
        except OSError as error:
            bare.close()
            raise self._away(error) from None
        except PeerError:
            bare.close()
            raise

    def ask(self, request: wire.Request, kind: type[A]) -> A:
        """The answer, of the kind that belongs to the question; a refusal is raised as what it means."""
        try:
            self._socket.sendall(wire.encode(request))
            while not self._answers:
                data = self._socket.recv(_READ_BYTES)
                if not data:
                    raise ControllerUnreachableError(f"the controller at {self._controller} hung up; see its log")
                self._answers += self._frames.feed(data)
        except OSError as error:
            raise self._away(error) from None
        answer = wire.decode_answer(self._answers.pop(0))
        if isinstance(answer, kind):
            return answer
        if isinstance(answer, wire.Refusal):
            if answer.reject.reason is Reason.NOT_YOURS:
                raise WorldError(f"the controller refused: {answer.reject.detail}")
            raise ConfigError(_field_of(request), _value_of(request), answer.reject.detail)
        if isinstance(answer, wire.ProtocolFault):
            raise PeerError(f"the controller refuses to talk: {answer.detail}")
        raise PeerError(f"the controller answered {type(answer).__name__} to {type(request).__name__}")

    def _away(self, error: OSError) -> WorldError:
        if isinstance(error, TimeoutError):
            return ControllerUnreachableError(
                f"the controller at {self._controller} does not answer; see its log, or restart it"
            )
        return ControllerUnreachableError(
            f"cannot talk to the controller at {self._controller}: {why_not(error, unix_ns(), self._identity)}"
        )

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def __enter__(self) -> Self:
        """For a few questions."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Hang up."""
        self.close()


def talk(identity: Identity) -> Conversation:
    """Talk to the controller as the holder of this identity."""
    return Conversation(identity.controller, client_context(identity), identity, is_trusted=True)


def talk_unauthenticated(controller: str, authority: str = "") -> Conversation:
    """Connect without a certificate; with an authority, only to the controller of its cluster."""
    return Conversation(controller, unauthenticated_context(authority), None, is_trusted=bool(authority))


def _field_of(request: wire.Request) -> str:
    match request:
        case wire.Submit() | wire.Cancel():
            return "JOB"
        case wire.Drain() | wire.Enrol() | wire.Forget():
            return "NODE"
    return str(type(request).__struct_config__.tag)


def _value_of(request: wire.Request) -> str:
    match request:
        case wire.Submit(spec=spec):
            return spec.name
        case (
            wire.Cancel(job=name)
            | wire.Drain(node=name)
            | wire.Forget(node=name)
            | wire.Enrol(name=name)
            | wire.Revoke(name=name)
        ):
            return name
    return ""
