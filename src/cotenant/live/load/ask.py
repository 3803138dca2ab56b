"""What does a server say of its models, before it is put under load? Asked once, and waited for."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from cotenant.errors import ConfigError, WorldError
from cotenant.format.asking import Described
from cotenant.format.grpc_client import GrpcCaller, call_head, enveloped
from cotenant.format.grpc_words import NOT_FOUND, OK
from cotenant.format.http2 import Http2Error
from cotenant.format.http_answer import AnswerError, AnswerReader
from cotenant.live.load.channel import Endpoint

_PATIENCE_S: Final = 10.0
_READ_BYTES: Final = 1 << 16
_Found = TypeVar("_Found")


def describe(endpoint: Endpoint, model: str) -> Described:
    """What the model takes and gives."""
    if endpoint.kind == "http":
        status, body = get(endpoint, f"/v2/models/{model}")
        _known(model, endpoint, status, is_known=status == 200, is_unknown=status in (400, 404))
        try:
            return msgspec.json.decode(body, type=Described)
        except msgspec.DecodeError as error:
            said = f"{endpoint.authority} does not describe {model!r} as the Open Inference Protocol does: {error}"
            raise WorldError(said) from None
    from cotenant.format.asking_proto import (  # noqa: PLC0415  protobuf is an optional package
        METADATA,
        metadata_request,
        read_metadata,
    )

    caller = GrpcCaller(keep=True)
    caller.call(call_head(METADATA, endpoint.authority), enveloped(metadata_request(model)))

    def heard(data: bytes) -> tuple[int, bytes] | None:
        ended = caller.feed(data)
        return (ended[0].status, ended[0].message) if ended else None

    status, message = _exchange(endpoint, caller.take, heard)
    _known(model, endpoint, status, is_known=status == OK, is_unknown=status == NOT_FOUND)
    return read_metadata(message)


def get(endpoint: Endpoint, path: str) -> tuple[int, bytes]:
    """One page over HTTP: its status and its body."""
    reader = AnswerReader(keep=True)
    unsent = [f"GET {path} HTTP/1.1\r\nHost: {endpoint.authority}\r\n\r\n".encode()]

    def heard(data: bytes) -> tuple[int, bytes] | None:
        found = reader.feed(data)
        return (found[0].status, found[1]) if found else None

    return _exchange(endpoint, lambda: unsent.pop() if unsent else b"", heard)


def _exchange(endpoint: Endpoint, say: Callable[[], bytes], hear: Callable[[bytes], _Found | None]) -> _Found:
    where = f"{endpoint.kind}://{endpoint.authority}"
    try:
        with socket.create_connection((endpoint.host, endpoint.port), _PATIENCE_S) as connection:
            while True:
                if out := say():
                    connection.sendall(out)
                data = connection.recv(_READ_BYTES)
                if not data:
                    raise WorldError(f"{where} ends the connection: does it speak {endpoint.kind} there?")
                if (found := hear(data)) is not None:
                    return found
    except (AnswerError, Http2Error) as error:
        raise WorldError(f"{where} does not speak {endpoint.kind}: {error}") from None
    except OSError as error:
        raise WorldError(f"no answer from {where}: {error.strerror or error}; is the server there?") from None


def _known(model: str, endpoint: Endpoint, status: int, *, is_known: bool, is_unknown: bool) -> None:
    if is_unknown:
        raise ConfigError("--model", model, f"{endpoint.authority} has no such model")
    if not is_known:
        raise WorldError(f"{endpoint.authority} answers {status} when asked what {model!r} takes")
