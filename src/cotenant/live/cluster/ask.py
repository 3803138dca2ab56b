"""How does a program ask the brain something? One connection, one question at a time, and an end to waiting."""

from __future__ import annotations

import socket
import ssl
from typing import Final, Self, TypeVar

from cotenant.domain.plan import Reason
from cotenant.errors import ConfigError, PeerError, WorldError
from cotenant.format import cluster_wire as wire
from cotenant.live.address import split_address
from cotenant.live.clock import unix_ns
from cotenant.live.cluster.identity import Identity, check_brain, client_context, stranger_context, why_not

_TIMEOUT_S: Final = 20.0
_READ_BYTES: Final = 64 << 10
A = TypeVar("A")


class BrainAwayError(WorldError):
    """Nobody answers where the brain should be."""


class Conversation:
    """Asks and awaits answers."""

    def __init__(self, brain: str, context: ssl.SSLContext, identity: Identity | None, *, is_trusted: bool) -> None:
        """Connect, or raise; `is_trusted` is whether the other end must show that it is the brain."""
        self._brain = brain
        self._identity = identity
        self._frames = wire.answer_frames()
        self._answers: list[bytes] = []
        host, port = split_address(brain, "brain")
        try:
            bare = socket.create_connection((host, port), _TIMEOUT_S)
        except OSError as error:
            why = error.strerror or str(error)
            raise BrainAwayError(
                f"no brain answers at {brain} ({why}); start one with: cotenant cluster start"
            ) from None
        try:
            self._socket = context.wrap_socket(bare)
            if is_trusted:
                check_brain(self._socket)
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
                    raise BrainAwayError(f"the brain at {self._brain} hung up; see its log")
                self._answers += self._frames.feed(data)
        except OSError as error:
            raise self._away(error) from None
        answer = wire.decode_answer(self._answers.pop(0))
        if isinstance(answer, kind):
            return answer
        if isinstance(answer, wire.Refused):
            if answer.reject.reason is Reason.NOT_YOURS:
                raise WorldError(f"the brain refused: {answer.reject.detail}")
            raise ConfigError(_field_of(request), _value_of(request), answer.reject.detail)
        if isinstance(answer, wire.Wrong):
            raise PeerError(f"the brain refuses to talk: {answer.detail}")
        raise PeerError(f"the brain answered {type(answer).__name__} to {type(request).__name__}")

    def _away(self, error: OSError) -> WorldError:
        if isinstance(error, TimeoutError):
            return BrainAwayError(f"the brain at {self._brain} does not answer; see its log, or restart it")
        return BrainAwayError(f"cannot talk to the brain at {self._brain}: {why_not(error, unix_ns(), self._identity)}")

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
    """Talk to the brain as the holder of this identity."""
    return Conversation(identity.brain, client_context(identity), identity, is_trusted=True)


def talk_as_stranger(brain: str, authority: str = "") -> Conversation:
    """Talk to whoever is there, or (with an authority) to the brain of its cluster only, without a certificate."""
    return Conversation(brain, stranger_context(authority), None, is_trusted=bool(authority))


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
