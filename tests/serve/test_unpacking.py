"""Large bodies are decompressed in a thread, in order, while the loop serves others."""

import asyncio
import threading
from typing import Any, cast

import pytest

pytest.importorskip("google.protobuf")
from cotenant.serve.frontend.admin import AdminService
from cotenant.serve.frontend.grpc import GrpcProtocol, GrpcServer
from cotenant.serve.frontend.http import ClientLimits, HttpConnection, HttpServer
from cotenant.serve.protocol.compression import Decompression, compress
from cotenant.serve.protocol.http2 import frames as http2
from cotenant.serve.protocol.http2.frames import frame
from cotenant.serve.protocol.http2.hpack import encode_header
from cotenant.serve.protocol.oip.proto import SERVICE

pytestmark = pytest.mark.live

MUCH = 3 << 20


class Line:
    """A transport that keeps the data sent, and whether it reads."""

    def __init__(self) -> None:
        self.sent = b""
        self.reads = True

    def is_closing(self) -> bool:
        return False

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
    """Return the threads that decompressed more than a megabyte."""
    found: list[threading.Thread] = []
    finish = Decompression.finish

    def noted(self: Decompression) -> bytes:
        plain = finish(self)
        if len(plain) > 1 << 20:
            found.append(threading.current_thread())
        return plain

    monkeypatch.setattr(Decompression, "finish", noted)
    return found


async def settled(serving: Any) -> None:
    while serving.tasks:
        await asyncio.wait(set(serving.tasks), timeout=60)


def call(stream: int, method: str, *messages: bytes) -> bytes:
    path = encode_header(b":path", f"/{SERVICE}/{method}".encode())
    headers = b"\x83\x86" + path + encode_header(b"content-type", b"application/grpc")
    headers += encode_header(b"grpc-encoding", b"gzip")
    text = frame(http2.HEADERS, http2.END_HEADERS, stream, headers)
    for message in messages:
        packed = compress(message, "gzip")
        text += frame(http2.DATA, 0, stream, b"\1" + len(packed).to_bytes(4, "big") + packed)
    return text + frame(http2.DATA, http2.END_STREAM, stream)


def test_messages_of_a_stream_stay_in_order(threads: list[threading.Thread], monkeypatch: pytest.MonkeyPatch) -> None:
    plains = [b"a" * 10, b"b" * MUCH, b"c" * 10, b"d" * MUCH, b"e"]
    heard: list[bytes] = []
    monkeypatch.setattr(GrpcProtocol, "_infer_on_stream", lambda self, stream, call, said: heard.append(said))

    async def main() -> Line:
        serving, line = GrpcServer(cast("AdminService", None), 1 << 23, 1 << 24, 10), Line()
        protocol = serving()
        protocol.connection_made(cast("asyncio.Transport", line))
        begin = http2.PREFACE + frame(http2.SETTINGS, 0, 0)
        protocol.data_received(begin + call(1, "ModelStreamInfer", *plains))
        assert not line.reads
        assert heard == plains[:1]
        await settled(serving)
        assert line.reads
        return line

    line = asyncio.run(main())
    assert heard == plains
    assert threads
    assert threading.main_thread() not in threads
    assert b"grpc-status" in line.sent


def test_a_call_that_is_dropped_meanwhile_is_not_gone_on_with(threads: list[threading.Thread]) -> None:
    async def main() -> Line:
        serving, line = GrpcServer(cast("AdminService", None), 1 << 23, 1 << 24, 10), Line()
        protocol = serving()
        protocol.connection_made(cast("asyncio.Transport", line))
        begin = http2.PREFACE + frame(http2.SETTINGS, 0, 0)
        protocol.data_received(begin + call(1, "ModelInfer", bytes(MUCH)) + http2.rst_stream(1, http2.NO_ERROR))
        await settled(serving)
        return line

    assert asyncio.run(main()).reads
    assert len(threads) == 1


def test_a_small_body_that_becomes_much(threads: list[threading.Thread], monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[bytes] = []
    monkeypatch.setattr(HttpConnection, "_route", lambda self, request, target, body: heard.append(bytes(body)))
    plain = b"a" * MUCH
    packed = compress(plain, "gzip")
    assert len(packed) < 32 << 10
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"

    async def main() -> None:
        serving, line = HttpServer(cast("AdminService", None), ClientLimits(), lambda: b""), Line()
        connection = serving()
        connection.connection_made(cast("asyncio.Transport", line))
        connection.data_received(head % len(packed) + packed)
        assert not heard
        await settled(serving)

    asyncio.run(main())
    assert heard == [plain]
    assert threads
    assert threading.main_thread() not in threads
