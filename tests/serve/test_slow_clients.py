"""Stalled gRPC clients are disconnected, and progressing ones are kept."""

import asyncio
from typing import Any, cast

import pytest

pytest.importorskip("google.protobuf")
from cotenant.serve.frontend.admin import AdminService
from cotenant.serve.frontend.grpc import GrpcProtocol, GrpcServer
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


class Line:
    """A transport that sends at once, and records whether it was aborted."""

    def __init__(self) -> None:
        self.cut = False

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        del data

    def abort(self) -> None:
        self.cut = True

    def pause_reading(self) -> None:
        pass

    resume_reading = close = pause_reading


def met() -> tuple[GrpcServer, GrpcProtocol, Line]:
    serving = GrpcServer(cast("AdminService", None), 1 << 20, 1 << 20, 10)
    line = Line()
    protocol = serving()
    protocol.connection_made(cast("asyncio.Transport", line))
    protocol.data_received(BEGIN)
    return serving, protocol, line


def begin(stream: int, size: int) -> bytes:
    """Start a call with a partial message."""
    lead = b"\0" + MESSAGE_BYTES.to_bytes(4, "big")
    return frame(http2.HEADERS, http2.END_HEADERS, stream, HEADERS) + more(stream, lead + bytes(size))


def more(stream: int, payload: bytes) -> bytes:
    return frame(http2.DATA, 0, stream, payload)


def test_half_a_message_that_does_not_go_on_ends_the_connection() -> None:
    serving, protocol, line = met()
    protocol.data_received(begin(1, 100))
    serving.sweep()
    assert not line.cut
    protocol.data_received(more(1, bytes(4000)))
    serving.sweep()
    assert line.cut


def test_one_that_goes_on_is_kept_and_does_not_hide_another() -> None:
    serving, protocol, line = met()
    protocol.data_received(begin(1, 100))
    for _ in range(5):
        serving.sweep()
        protocol.data_received(more(1, bytes(5000)))
    assert not line.cut
    protocol.data_received(begin(3, 0))
    serving.sweep()
    protocol.data_received(more(1, bytes(5000)))
    serving.sweep()
    assert line.cut


def test_the_next_message_of_a_stream_is_not_taken_for_the_one_before() -> None:
    serving, protocol, line = met()
    path = encode_header(b":path", b"/inference.GRPCInferenceService/ModelStreamInfer")
    headers = b"\x83\x86" + path + encode_header(b"content-type", b"application/grpc")
    small = b"\0" + (1000).to_bytes(4, "big") + bytes(500)
    received: list[Any] = []
    protocol._infer_on_stream = lambda *said: received.append(said)  # type: ignore[method-assign]
    protocol.data_received(frame(http2.HEADERS, http2.END_HEADERS, 1, headers) + more(1, small))
    for count in range(1, 4):
        serving.sweep()
        protocol.data_received(more(1, bytes(500) + small))
        assert len(received) == count
    serving.sweep()
    assert not line.cut


def test_a_client_that_is_not_read_from_is_not_blamed() -> None:
    serving, protocol, line = met()
    protocol.data_received(begin(1, 100))
    serving.sweep()
    protocol.pause_writing()
    serving.sweep()
    protocol.resume_writing()
    serving.sweep()
    assert not line.cut
    serving.sweep()
    assert line.cut
