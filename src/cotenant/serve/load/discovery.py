"""Query of a server's model metadata before a load test."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from cotenant.errors import ConfigError, SetupError, WorldError
from cotenant.serve.load.connections import Endpoint
from cotenant.serve.load.request import ModelMetadata
from cotenant.serve.protocol.grpc.client import GrpcClient, call_head, length_prefixed
from cotenant.serve.protocol.grpc.status import NOT_FOUND, OK
from cotenant.serve.protocol.http1.response import ResponseError, ResponseReader
from cotenant.serve.protocol.http2.frames import Http2Error

_TIMEOUT_S: Final = 10.0
_READ_BYTES: Final = 1 << 16
_Result = TypeVar("_Result")


def describe(endpoint: Endpoint, model: str) -> ModelMetadata:
    """Return the inputs and outputs of a model."""
    if endpoint.kind == "http":
        status, body = get(endpoint, f"/v2/models/{model}")
        _check_status(model, endpoint, status, is_known=status == 200, is_unknown=status in (400, 404))
        try:
            return msgspec.json.decode(body, type=ModelMetadata)
        except msgspec.DecodeError as error:
            problem = f"{endpoint.authority} does not describe {model!r} as the Open Inference Protocol does: {error}"
            raise SetupError(problem) from None
    from cotenant.serve.load.request_proto import (  # noqa: PLC0415  protobuf is an optional package
        METADATA,
        metadata_request,
        read_metadata,
    )

    client = GrpcClient(keep=True)
    client.call(call_head(METADATA, endpoint.authority), length_prefixed(metadata_request(model)))

    def receive(data: bytes) -> tuple[int, bytes] | None:
        calls = client.feed(data)
        return (calls[0].status, calls[0].message) if calls else None

    status, message = _exchange(endpoint, client.take, receive)
    _check_status(model, endpoint, status, is_known=status == OK, is_unknown=status == NOT_FOUND)
    return read_metadata(message)


def get(endpoint: Endpoint, path: str) -> tuple[int, bytes]:
    """Send one HTTP GET; return the status and the body."""
    reader = ResponseReader(keep=True)
    unsent = [f"GET {path} HTTP/1.1\r\nHost: {endpoint.authority}\r\n\r\n".encode()]

    def receive(data: bytes) -> tuple[int, bytes] | None:
        response = reader.feed(data)
        return (response[0].status, response[1]) if response else None

    return _exchange(endpoint, lambda: unsent.pop() if unsent else b"", receive)


def _exchange(
    endpoint: Endpoint, next_output: Callable[[], bytes], receive: Callable[[bytes], _Result | None]
) -> _Result:
    where = f"{endpoint.kind}://{endpoint.authority}"
    try:
        with socket.create_connection((endpoint.host, endpoint.port), _TIMEOUT_S) as connection:
            while True:
                if output := next_output():
                    connection.sendall(output)
                data = connection.recv(_READ_BYTES)
                if not data:
                    raise WorldError(f"{where} closed the connection; check that it speaks {endpoint.kind}")
                if (result := receive(data)) is not None:
                    return result
    except (ResponseError, Http2Error) as error:
        raise SetupError(f"{where} does not speak {endpoint.kind}: {error}") from None
    except OSError as error:
        raise WorldError(
            f"no answer from {where}: {error.strerror or error}; check that the server is running"
        ) from None


def _check_status(model: str, endpoint: Endpoint, status: int, *, is_known: bool, is_unknown: bool) -> None:
    if is_unknown:
        raise ConfigError("--model", model, f"{endpoint.authority} has no such model")
    if not is_known:
        raise WorldError(f"{endpoint.authority} answers {status} to the metadata request for {model!r}")
