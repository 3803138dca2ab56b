"""Large bodies are decompressed in a thread, in order, while the loop serves others."""

import asyncio
import threading
from typing import Any, cast

import pytest

pytest.importorskip("google.protobuf")
from cotenant.serve.frontend.admin import AdminService
from cotenant.serve.frontend.connections import ClientLimits
from cotenant.serve.frontend.grpc import GrpcProtocol, GrpcServer
from cotenant.serve.frontend.http import HttpConnection, HttpServer
from cotenant.serve.protocol.compression import STEP_BYTES, Decompression, compress
from cotenant.serve.protocol.http2 import frames as http2
from cotenant.serve.protocol.http2.frames import frame
from cotenant.serve.protocol.http2.hpack import encode_header
from cotenant.serve.protocol.oip.proto import SERVICE

pytestmark = pytest.mark.live

LARGE_BYTES = 3 << 20


class RecordingTransport:
    """A transport that keeps the data sent, and whether it reads."""

    def __init__(self) -> None:
        self.sent = b""
        self.reads = True

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.sent += data

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Return the threads that decompressed more than a megabyte and a byte."""
    threads_used: list[threading.Thread] = []
    step = Decompression.step

    def recording_step(self: Decompression, size_bytes: int = STEP_BYTES) -> bool:
        is_complete = step(self, size_bytes)
        if len(self.result) > (1 << 20) + 1:
            threads_used.append(threading.current_thread())
        return is_complete

    monkeypatch.setattr(Decompression, "step", recording_step)
    return threads_used


async def tasks_done(server: Any) -> None:
    while server.tasks:
        await asyncio.wait(set(server.tasks), timeout=60)


def call(stream: int, method: str, *messages: bytes) -> bytes:
    path = encode_header(b":path", f"/{SERVICE}/{method}".encode())
    headers = b"\x83\x86" + path + encode_header(b"content-type", b"application/grpc")
    headers += encode_header(b"grpc-encoding", b"gzip")
    text = frame(http2.HEADERS, http2.END_HEADERS, stream, headers)
    for message in messages:
        compressed = compress(message, "gzip")
        text += frame(http2.DATA, 0, stream, b"\1" + len(compressed).to_bytes(4, "big") + compressed)
    return text + frame(http2.DATA, http2.END_STREAM, stream)


def test_messages_of_a_stream_stay_in_order(threads: list[threading.Thread], monkeypatch: pytest.MonkeyPatch) -> None:
    plains = [b"a" * 10, b"b" * LARGE_BYTES, b"c" * 10, b"d" * LARGE_BYTES, b"e"]
    messages: list[bytes] = []
    monkeypatch.setattr(GrpcProtocol, "_message_received", lambda self, stream, call, message: messages.append(message))

    async def main() -> RecordingTransport:
        server, transport = (
            GrpcServer(cast("AdminService", None), ClientLimits(1 << 23, 1 << 24, 10)),
            RecordingTransport(),
        )
        protocol = server()
        protocol.connection_made(cast("asyncio.Transport", transport))
        begin = http2.PREFACE + frame(http2.SETTINGS, 0, 0)
        protocol.data_received(begin + call(1, "ModelStreamInfer", *plains))
        assert not transport.reads
        assert messages == plains[:1]
        await tasks_done(server)
        assert transport.reads
        return transport

    transport = asyncio.run(main())
    assert messages == plains
    assert threads
    assert threading.main_thread() not in threads
    assert b"grpc-status" in transport.sent


def test_call_reset_during_decompression_is_dropped(threads: list[threading.Thread]) -> None:
    async def main() -> RecordingTransport:
        server, transport = (
            GrpcServer(cast("AdminService", None), ClientLimits(1 << 23, 1 << 24, 10)),
            RecordingTransport(),
        )
        protocol = server()
        protocol.connection_made(cast("asyncio.Transport", transport))
        begin = http2.PREFACE + frame(http2.SETTINGS, 0, 0)
        protocol.data_received(begin + call(1, "ModelInfer", bytes(LARGE_BYTES)) + http2.rst_stream(1, http2.NO_ERROR))
        await tasks_done(server)
        return transport

    assert asyncio.run(main()).reads
    assert threads
    assert threading.main_thread() not in threads


def test_small_body_with_large_result_is_decompressed_in_a_thread(
    threads: list[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies: list[bytes] = []
    monkeypatch.setattr(HttpConnection, "_route", lambda self, request, target, body: bodies.append(bytes(body)))
    plain = b"a" * LARGE_BYTES
    compressed = compress(plain, "gzip")
    assert len(compressed) < 32 << 10
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"

    async def main() -> None:
        server, transport = HttpServer(cast("AdminService", None), ClientLimits(), lambda: b""), RecordingTransport()
        connection = server()
        connection.connection_made(cast("asyncio.Transport", transport))
        connection.data_received(head % len(compressed) + compressed)
        assert not bodies
        await tasks_done(server)

    asyncio.run(main())
    assert bodies == [plain]
    assert threads
    assert threading.main_thread() not in threads


def test_unpacked_size_counts_against_the_memory_for_bodies_before_unpacking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small bodies that together expand to more than the memory for bodies are refused, and none is unpacked beyond."""
    largest = 0
    monkeypatch.setattr(HttpConnection, "_route", lambda self, request, target, body: self._respond(200, b""))
    compressed = compress(bytes(16 << 20), "gzip")
    assert len(compressed) < 128 << 10
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    step = Decompression.step

    def slow_step(self: Decompression, size_bytes: int = STEP_BYTES) -> bool:
        nonlocal largest
        is_complete = step(self, size_bytes)
        largest = max(largest, server.receive_budget.used_bytes)
        return is_complete

    async def main() -> list[bytes]:
        transports = [RecordingTransport() for _ in range(24)]
        for transport in transports:
            connection = server()
            connection.connection_made(cast("asyncio.Transport", transport))
            connection.data_received(head % len(compressed) + compressed)
        await tasks_done(server)
        return [transport.sent.partition(b"\r\n")[0] for transport in transports]

    monkeypatch.setattr(Decompression, "step", slow_step)
    limits = ClientLimits(body_bytes=32 << 20, held_bytes=64 << 20)
    server = HttpServer(cast("AdminService", None), limits, lambda: b"")
    statuses = asyncio.run(main())
    assert set(statuses) == {b"HTTP/1.1 200 OK", b"HTTP/1.1 429 Too Many Requests"}
    assert 0 < largest <= limits.held_bytes
    assert server.receive_budget.used_bytes == 0
