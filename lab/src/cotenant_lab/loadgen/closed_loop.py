"""Closed-loop load: each client sends its next request after an answer.

One thread uses raw sockets and requests that were encoded once: a request needs two system calls and a few comparisons,
so that one core of load exceeds one core of server. It is a separate program so that the load does not share an
interpreter with the bench.
"""

from __future__ import annotations

import selectors
import socket
import sys
from typing import Final, NamedTuple, Protocol

import msgspec

from cotenant.runner.clock import monotonic_ns
from cotenant.serve.protocol.http2 import frames as http2
from cotenant.serve.protocol.http2.hpack import encode_header
from cotenant.units.histogram import Recorder
from cotenant.units.instant import MICROSECOND_NS, SECOND_NS

_READ_BYTES: Final = 1 << 18
_SETTLE: Final = 0.2
"""Fraction of the time before the measured window."""
_GRPC_CONNECTIONS: Final = 4
_PATH: Final = b"/inference.GRPCInferenceService/ModelInfer"


class LoadSpec(msgspec.Struct, frozen=True):
    """What to send, where, and for how long."""

    kind: str
    port: int
    concurrency: int
    seconds: float
    message: bytes
    """For HTTP a whole request, for gRPC a message."""


class Answers(msgspec.Struct, frozen=True):
    """Answers of the measured window."""

    requests: int
    took_ns: int
    p50_us: float
    p99_us: float
    all_requests: int
    """Including the time before the window."""


class _Channel(Protocol):
    socket: socket.socket

    def begin(self) -> bytes:
        """Return the bytes to send first."""
        ...

    def read(self, data: bytes) -> tuple[int, bytes]:
        """Return how many answers these bytes complete, and the bytes to send now, including the next requests."""
        ...


def _connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), 30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class _HttpChannel:
    """One connection, one request at a time; every answer is as long as the first."""

    def __init__(self, port: int, request: bytes) -> None:
        self.socket = _connect(port)
        self._request = request
        self._received_bytes = 0
        self._answer_bytes = 0
        self._first = b""

    def begin(self) -> bytes:
        return self._request

    def read(self, data: bytes) -> tuple[int, bytes]:
        if not self._answer_bytes:
            self._first += data
            head, separator, _ = self._first.partition(b"\r\n\r\n")
            if not separator:
                return 0, b""
            if not head.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"the server answers {self._first[:500]!r}")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            self._answer_bytes = len(head) + 4 + int(length.partition(b":")[2])
        self._received_bytes += len(data)
        if self._received_bytes < self._answer_bytes:
            return 0, b""
        self._received_bytes = 0
        return 1, self._request


class _GrpcChannel:
    """One connection with several concurrent calls."""

    def __init__(self, port: int, message: bytes, calls: int) -> None:
        self.socket = _connect(port)
        headers = ((b":path", _PATH), (b":authority", b"localhost"), (b"content-type", b"application/grpc"))
        block = b"\x83\x86" + b"".join(encode_header(*header) for header in (*headers, (b"te", b"trailers")))
        data = b"\x00" + len(message).to_bytes(4, "big") + message
        self._headers = (len(block), block)
        self._data = (len(data), data)
        self._calls = calls
        self._stream = 1
        self._buffer = b""
        self._is_checked = False

    def begin(self) -> bytes:
        window = (http2.MAX_WINDOW_SIZE).to_bytes(4, "big")
        settings = http2.frame(http2.SETTINGS, 0, 0, b"\x00\x04" + window)
        window_update = http2.window_update(0, http2.MAX_WINDOW_SIZE - 65535)
        return http2.PREFACE + settings + window_update + b"".join(self._call() for _ in range(self._calls))

    def _call(self) -> bytes:
        stream = self._stream
        self._stream += 2
        length, block = self._headers
        size, data = self._data
        lead = http2.frame_header(http2.HEADERS, http2.END_HEADERS, stream, length)
        return lead + block + http2.frame_header(http2.DATA, http2.END_STREAM, stream, size) + data

    def read(self, data: bytes) -> tuple[int, bytes]:
        data = self._buffer + data
        output = []
        answers = offset = 0
        while len(data) - offset >= http2.FRAME_HEADER_BYTES:
            end = offset + http2.FRAME_HEADER_BYTES + int.from_bytes(data[offset : offset + 3], "big")
            if end > len(data):
                break
            kind, flags = data[offset + 3], data[offset + 4]
            payload = data[offset + http2.FRAME_HEADER_BYTES : end]
            if kind == http2.HEADERS and flags & http2.END_STREAM:
                self._check(payload)
                answers += 1
                output.append(self._call())
            elif kind == http2.SETTINGS and not flags & http2.ACK:
                output.append(http2.frame(http2.SETTINGS, http2.ACK, 0))
            elif kind == http2.PING and not flags & http2.ACK:
                output.append(http2.frame(http2.PING, http2.ACK, 0, payload))
            elif kind in (http2.GOAWAY, http2.RST_STREAM):
                raise SystemExit(f"the server sends {payload!r}")
            offset = end
        self._buffer = data[offset:]
        return answers, b"".join(output)

    def _check(self, trailers: bytes) -> None:
        """Check once that the call succeeded, as far as the trailers are plain text."""
        if not self._is_checked:
            self._is_checked = True
            if b"grpc-status\x010" not in trailers:
                raise SystemExit(f"the server ends a call with {trailers!r}")


def put_under_load(load: LoadSpec) -> Answers:
    """Send until the time is over."""
    channels: list[_Channel] = []
    if load.kind == "http":
        channels += [_HttpChannel(load.port, load.message) for _ in range(load.concurrency)]
    else:
        count = min(load.concurrency, _GRPC_CONNECTIONS)
        shares = [load.concurrency // count + (index < load.concurrency % count) for index in range(count)]
        channels += [_GrpcChannel(load.port, load.message, share) for share in shares]
    return _Generator(channels, load.seconds).run()


class _Pace(NamedTuple):
    counted_from_ns: int
    until_ns: int


class _Generator:
    """Latency is measured per connection in the order of requests: with several calls on one, from the oldest."""

    def __init__(self, channels: list[_Channel], seconds: float) -> None:
        self._selector = selectors.DefaultSelector()
        self._send_times: dict[int, list[int]] = {}
        self._channels = channels
        self._seconds = seconds
        self._recorder = Recorder()
        self._counted = 0
        self._answers = 0

    def run(self) -> Answers:
        begin = monotonic_ns()
        pace = _Pace(
            begin + int(self._seconds * _SETTLE * SECOND_NS), begin + int(self._seconds * (1 + _SETTLE) * SECOND_NS)
        )
        for channel in self._channels:
            calls = getattr(channel, "_calls", 1)
            self._send_times[channel.socket.fileno()] = [monotonic_ns()] * calls
            channel.socket.sendall(channel.begin())
            self._selector.register(channel.socket, selectors.EVENT_READ, channel)
        now = begin
        while now < pace.until_ns or not self._counted:  # at least one answer is needed
            ready = self._selector.select(10)
            if not ready:
                raise SystemExit("the server does not answer")
            for key, _ in ready:
                now = self._step(key.data, pace)
        for channel in self._channels:
            channel.socket.close()
        took_ns = now - pace.counted_from_ns
        histogram = self._recorder.histogram()
        quantiles = (histogram.quantile(0.5) / MICROSECOND_NS, histogram.quantile(0.99) / MICROSECOND_NS)
        return Answers(self._counted, took_ns, *quantiles, self._answers)

    def _step(self, channel: _Channel, pace: _Pace) -> int:
        data = channel.socket.recv(_READ_BYTES)
        if not data:
            raise SystemExit("the server closes the connection")
        answers, output = channel.read(data)
        if output:
            channel.socket.sendall(output)
        now = monotonic_ns()
        if answers:
            self._answers += answers
            send_times = self._send_times[channel.socket.fileno()]
            if now >= pace.counted_from_ns:
                self._counted += answers
                for sent_at in send_times[:answers]:
                    self._recorder.record(now - sent_at)
            send_times[:answers] = []
            send_times += [now] * answers
        return now


if __name__ == "__main__":
    load = msgspec.json.decode(sys.stdin.buffer.read(), type=LoadSpec)
    sys.stdout.buffer.write(msgspec.json.encode(put_under_load(load)))
