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
    made = socket.create_connection(("127.0.0.1", port), 30)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


class _HttpChannel:
    """One connection, one request at a time; every answer is as long as the first."""

    def __init__(self, port: int, request: bytes) -> None:
        self.socket = _connect(port)
        self._request = request
        self._have = 0
        self._whole = 0
        self._first = b""

    def begin(self) -> bytes:
        return self._request

    def read(self, data: bytes) -> tuple[int, bytes]:
        if not self._whole:
            self._first += data
            head, found, _ = self._first.partition(b"\r\n\r\n")
            if not found:
                return 0, b""
            if not head.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"the server answers {self._first[:500]!r}")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            self._whole = len(head) + 4 + int(length.partition(b":")[2])
        self._have += len(data)
        if self._have < self._whole:
            return 0, b""
        self._have = 0
        return 1, self._request


class _GrpcChannel:
    """One connection with several concurrent calls."""

    def __init__(self, port: int, message: bytes, calls: int) -> None:
        self.socket = _connect(port)
        named = ((b":path", _PATH), (b":authority", b"localhost"), (b"content-type", b"application/grpc"))
        block = b"\x83\x86" + b"".join(encode_header(*one) for one in (*named, (b"te", b"trailers")))
        data = b"\x00" + len(message).to_bytes(4, "big") + message
        self._headers = (len(block), block)
        self._data = (len(data), data)
        self._calls = calls
        self._stream = 1
        self._buffer = b""
        self._well = False

    def begin(self) -> bytes:
        most = (http2.MAX_WINDOW_SIZE).to_bytes(4, "big")
        settings = http2.frame(http2.SETTINGS, 0, 0, b"\x00\x04" + most)
        wide = http2.window_update(0, http2.MAX_WINDOW_SIZE - 65535)
        return http2.PREFACE + settings + wide + b"".join(self._call() for _ in range(self._calls))

    def _call(self) -> bytes:
        stream = self._stream
        self._stream += 2
        length, block = self._headers
        size, data = self._data
        lead = http2.frame_header(http2.HEADERS, http2.END_HEADERS, stream, length)
        return lead + block + http2.frame_header(http2.DATA, http2.END_STREAM, stream, size) + data

    def read(self, data: bytes) -> tuple[int, bytes]:
        data = self._buffer + data
        out = []
        done = place = 0
        while len(data) - place >= http2.FRAME_HEADER_BYTES:
            end = place + http2.FRAME_HEADER_BYTES + int.from_bytes(data[place : place + 3], "big")
            if end > len(data):
                break
            kind, flags = data[place + 3], data[place + 4]
            payload = data[place + http2.FRAME_HEADER_BYTES : end]
            if kind == http2.HEADERS and flags & http2.END_STREAM:
                self._check(payload)
                done += 1
                out.append(self._call())
            elif kind == http2.SETTINGS and not flags & http2.ACK:
                out.append(http2.frame(http2.SETTINGS, http2.ACK, 0))
            elif kind == http2.PING and not flags & http2.ACK:
                out.append(http2.frame(http2.PING, http2.ACK, 0, payload))
            elif kind in (http2.GOAWAY, http2.RST_STREAM):
                raise SystemExit(f"the server sends {payload!r}")
            place = end
        self._buffer = data[place:]
        return done, b"".join(out)

    def _check(self, trailers: bytes) -> None:
        """Check once that the call succeeded, as far as the trailers are plain text."""
        if not self._well:
            self._well = True
            if b"grpc-status\x010" not in trailers:
                raise SystemExit(f"the server ends a call with {trailers!r}")


def put_under_load(load: LoadSpec) -> Answers:
    """Send until the time is over."""
    channels: list[_Channel] = []
    if load.kind == "http":
        channels += [_HttpChannel(load.port, load.message) for _ in range(load.concurrency)]
    else:
        count = min(load.concurrency, _GRPC_CONNECTIONS)
        shares = [load.concurrency // count + (place < load.concurrency % count) for place in range(count)]
        channels += [_GrpcChannel(load.port, load.message, share) for share in shares]
    return _Generator(channels, load.seconds).run()


class _Pace(NamedTuple):
    counted_from_ns: int
    until_ns: int


class _Generator:
    """Latency is measured per connection in the order of requests: with several calls on one, from the oldest."""

    def __init__(self, channels: list[_Channel], seconds: float) -> None:
        self._selector = selectors.DefaultSelector()
        self._sent: dict[int, list[int]] = {}
        self._channels = channels
        self._seconds = seconds
        self._recorder = Recorder()
        self._done = 0
        self._all = 0

    def run(self) -> Answers:
        begin = monotonic_ns()
        pace = _Pace(
            begin + int(self._seconds * _SETTLE * SECOND_NS), begin + int(self._seconds * (1 + _SETTLE) * SECOND_NS)
        )
        for channel in self._channels:
            calls = getattr(channel, "_calls", 1)
            self._sent[channel.socket.fileno()] = [monotonic_ns()] * calls
            channel.socket.sendall(channel.begin())
            self._selector.register(channel.socket, selectors.EVENT_READ, channel)
        now = begin
        while now < pace.until_ns or not self._done:  # at least one answer is needed
            ready = self._selector.select(10)
            if not ready:
                raise SystemExit("the server does not answer")
            for key, _ in ready:
                now = self._step(key.data, pace)
        for channel in self._channels:
            channel.socket.close()
        took_ns = now - pace.counted_from_ns
        found = self._recorder.histogram()
        quantiles = (found.quantile(0.5) / MICROSECOND_NS, found.quantile(0.99) / MICROSECOND_NS)
        return Answers(self._done, took_ns, *quantiles, self._all)

    def _step(self, channel: _Channel, pace: _Pace) -> int:
        data = channel.socket.recv(_READ_BYTES)
        if not data:
            raise SystemExit("the server closes the connection")
        done, more = channel.read(data)
        if more:
            channel.socket.sendall(more)
        now = monotonic_ns()
        if done:
            self._all += done
            sent = self._sent[channel.socket.fileno()]
            if now >= pace.counted_from_ns:
                self._done += done
                for since in sent[:done]:
                    self._recorder.record(now - since)
            sent[:done] = []
            sent += [now] * done
        return now


if __name__ == "__main__":
    load = msgspec.json.decode(sys.stdin.buffer.read(), type=LoadSpec)
    sys.stdout.buffer.write(msgspec.json.encode(put_under_load(load)))
