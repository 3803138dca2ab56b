"""Stalled clients are disconnected, and progressing ones are kept."""

import asyncio
from typing import Any, cast

import pytest

pytest.importorskip("google.protobuf")
from cotenant.serve.frontend.admin import AdminService
from cotenant.serve.frontend.connections import ClientLimits
from cotenant.serve.frontend.grpc import GrpcProtocol, GrpcServer
from cotenant.serve.frontend.http import HttpServer
from cotenant.serve.protocol.http2 import frames as http2
from cotenant.serve.protocol.http2.frames import frame
from cotenant.serve.protocol.http2.hpack import encode_header

pytestmark = pytest.mark.live

HEADERS = (
    b"\x83\x86"
    + encode_header(b":path", b"/inference.GRPCInferenceService/ModelInfer")
    + encode_header(b"content-type", b"application/grpc")
)
BEGIN = http2.PREFACE + frame(http2.SETTINGS, 0, 0)
MESSAGE_BYTES = 60_000


class FakeTransport:
    """A transport that sends at once, and records whether it was aborted."""

    def __init__(self) -> None:
        self.aborted = False

    def get_extra_info(self, name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        del data

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        pass

    resume_reading = close = pause_reading


def connected_server() -> tuple[GrpcServer, GrpcProtocol, FakeTransport]:
    server = GrpcServer(cast("AdminService", None), ClientLimits(1 << 20, 1 << 20, 10))
    transport = FakeTransport()
    protocol = server()
    protocol.connection_made(cast("asyncio.Transport", transport))
    protocol.data_received(BEGIN)
    return server, protocol, transport


def begin_call(stream: int, size: int) -> bytes:
    """Start a call with a partial message."""
    lead = b"\0" + MESSAGE_BYTES.to_bytes(4, "big")
    return frame(http2.HEADERS, http2.END_HEADERS, stream, HEADERS) + data_frame(stream, lead + bytes(size))


def data_frame(stream: int, payload: bytes) -> bytes:
    return frame(http2.DATA, 0, stream, payload)


def test_stalled_message_ends_the_connection() -> None:
    server, protocol, transport = connected_server()
    protocol.data_received(begin_call(1, 100))
    server.sweep()
    assert not transport.aborted
    protocol.data_received(data_frame(1, bytes(4000)))
    server.sweep()
    assert transport.aborted


def test_progressing_call_does_not_hide_a_stalled_one() -> None:
    server, protocol, transport = connected_server()
    protocol.data_received(begin_call(1, 100))
    for _ in range(5):
        server.sweep()
        protocol.data_received(data_frame(1, bytes(5000)))
    assert not transport.aborted
    protocol.data_received(begin_call(3, 0))
    server.sweep()
    protocol.data_received(data_frame(1, bytes(5000)))
    server.sweep()
    assert transport.aborted


def test_progress_is_tracked_per_message_of_a_stream() -> None:
    server, protocol, transport = connected_server()
    path = encode_header(b":path", b"/inference.GRPCInferenceService/ModelStreamInfer")
    headers = b"\x83\x86" + path + encode_header(b"content-type", b"application/grpc")
    small = b"\0" + (1000).to_bytes(4, "big") + bytes(500)
    received: list[Any] = []
    protocol._infer_on_stream = lambda *arguments: received.append(arguments)  # type: ignore[method-assign]
    protocol.data_received(frame(http2.HEADERS, http2.END_HEADERS, 1, headers) + data_frame(1, small))
    for count in range(1, 4):
        server.sweep()
        protocol.data_received(data_frame(1, bytes(500) + small))
        assert len(received) == count
    server.sweep()
    assert not transport.aborted


def test_client_whose_reading_is_paused_is_not_stalled() -> None:
    server, protocol, transport = connected_server()
    protocol.data_received(begin_call(1, 100))
    server.sweep()
    protocol.pause_writing()
    server.sweep()
    protocol.resume_writing()
    server.sweep()
    assert not transport.aborted
    server.sweep()
    assert transport.aborted


def test_unary_call_without_a_message_ends_the_connection() -> None:
    server, protocol, transport = connected_server()
    protocol.data_received(frame(http2.HEADERS, http2.END_HEADERS, 1, HEADERS))
    server.sweep()
    assert not transport.aborted
    server.sweep()
    assert transport.aborted


def test_stream_may_be_silent() -> None:
    server, protocol, transport = connected_server()
    path = encode_header(b":path", b"/inference.GRPCInferenceService/ModelStreamInfer")
    headers = b"\x83\x86" + path + encode_header(b"content-type", b"application/grpc")
    protocol.data_received(frame(http2.HEADERS, http2.END_HEADERS, 1, headers))
    for _ in range(5):
        server.sweep()
    assert not transport.aborted


def test_open_calls_of_all_clients_are_limited_but_each_may_have_some() -> None:
    server = GrpcServer(cast("AdminService", None), ClientLimits(1 << 20, 1 << 20, 10))
    server.open_calls.limit = 500
    protocols = [server() for _ in range(3)]
    for protocol in protocols:
        protocol.connection_made(cast("asyncio.Transport", FakeTransport()))
        calls = b"".join(frame(http2.HEADERS, http2.END_HEADERS, 2 * index + 1, HEADERS) for index in range(1000))
        protocol.data_received(BEGIN + calls)
    assert [protocol._connection.calls for protocol in protocols] == [500, 8, 8]
    for protocol in protocols:
        protocol.connection_lost(None)
    assert server.open_calls.count == 0


HEAD = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n"


@pytest.mark.parametrize(
    "begin, more, is_kept",
    [
        (HEAD, b"X-A: b\r\n", False),  # a head that grows by a header per check
        (HEAD[:9], b"", False),
        (HEAD + b"Content-Length: 90000\r\n\r\n", bytes(100), False),
        (HEAD + b"Content-Length: 90000\r\n\r\n", bytes(5000), True),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", False),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1388\r\n" + bytes(5000) + b"\r\n", True),
        (b"", b"", True),  # idle: the idle timeout closes it
    ],
)
def test_http_request_that_comes_slowly_ends_the_connection(begin: bytes, more: bytes, is_kept: bool) -> None:
    server = HttpServer(cast("AdminService", None), ClientLimits(1 << 20, 1 << 20, 10), lambda: b"")
    transport = FakeTransport()
    connection = server()
    connection.connection_made(cast("asyncio.Transport", transport))
    connection.data_received(begin)
    for _ in range(5):
        server.sweep()
        if not transport.aborted:
            connection.data_received(more)
    assert transport.aborted != is_kept
