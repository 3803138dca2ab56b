"""Our HTTP/2, HPACK and HTTP/1.1 code against maintained implementations: h2, hpack and h11."""

import contextlib
import itertools

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import h11
import hpack
import hpack.exceptions
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.serve.protocol.grpc.calls import CallReset, CallStarted, HalfClosed, MessageReceived
from cotenant.serve.protocol.grpc.connection import GrpcConnection
from cotenant.serve.protocol.grpc.status import read_call_headers
from cotenant.serve.protocol.http1.request import HttpError, HttpReader
from cotenant.serve.protocol.http2 import frames as http2
from cotenant.serve.protocol.http2.frames import Http2Error, frame
from cotenant.serve.protocol.http2.hpack import HpackDecoder, HpackError, encode_header
from tests.support.effort import examples

NAMES = st.sampled_from([b":path", b":method", b"content-type", b"te", b"x-a", b"x-b", b"grpc-timeout", b"cookie"])
VALUES = st.one_of(st.sampled_from([b"", b"POST", b"/", b"application/grpc", b"trailers"]), st.binary(max_size=40))
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=8)
BLOCKS = st.lists(st.tuples(HEADERS, st.booleans()), min_size=1, max_size=6)


def decoded(decoder: HpackDecoder, block: bytes) -> tuple[tuple[bytes, bytes], ...] | None:
    try:
        return tuple(decoder.decode(block))
    except HpackError:
        return None


def decoded_by_hpack(decoder: hpack.Decoder, block: bytes) -> tuple[tuple[bytes, bytes], ...] | None:
    try:
        return tuple((bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True))
    except (hpack.exceptions.HPACKError, UnicodeDecodeError):
        return None


@settings(max_examples=examples(150, 5000))
@given(BLOCKS)
def test_decoder_reads_what_hpack_encodes(blocks: list[tuple[list[tuple[bytes, bytes]], bool]]) -> None:
    """The dynamic table is kept over all blocks of a connection."""
    encoder, decoder = hpack.Encoder(), HpackDecoder()
    for headers, huffman in blocks:
        assert list(decoder.decode(encoder.encode(headers, huffman=huffman))) == headers


@settings(max_examples=examples(150, 5000))
@given(HEADERS)
def test_hpack_reads_what_our_encoder_writes(headers: list[tuple[bytes, bytes]]) -> None:
    block = b"".join(encode_header(name, value) for name, value in headers)
    assert [(bytes(name), bytes(value)) for name, value in hpack.Decoder().decode(block, raw=True)] == headers


@settings(max_examples=examples(300, 20000))
@given(BLOCKS, st.integers(0, 500), st.binary(max_size=3))
def test_decoders_agree_on_damaged_blocks(
    blocks: list[tuple[list[tuple[bytes, bytes]], bool]], position: int, damage: bytes
) -> None:
    """Both reject a block, or both read the same; afterwards their dynamic tables are the same."""
    encoder, ours, theirs = hpack.Encoder(), HpackDecoder(), hpack.Decoder()
    for headers, huffman in blocks:
        block = encoder.encode(headers, huffman=huffman)
        if block:
            cut = position % len(block)
            block = block[:cut] + damage + block[cut + len(damage) :]
        mine, reference = decoded(ours, block), decoded_by_hpack(theirs, block)
        assert mine == reference
        if mine is None:
            return


@settings(max_examples=examples(200, 10000))
@given(st.binary(max_size=60))
def test_decoders_agree_on_arbitrary_blocks(block: bytes) -> None:
    assert decoded(HpackDecoder(), block) == decoded_by_hpack(hpack.Decoder(), block)


CALL = [
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "server"),
    (":path", "/inference.GRPCInferenceService/ModelInfer"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.integers(0, 40_000)),
        st.tuples(st.just("reset"), st.integers(0, 5)),
        st.tuples(st.just("ping"), st.just(0)),
        st.tuples(st.just("window"), st.integers(1, 1 << 20)),
        st.tuples(st.just("settings"), st.integers(0, 1 << 20)),
        st.tuples(st.just("answer"), st.integers(0, 60_000)),
        st.tuples(st.just("fail"), st.integers(0, 16)),
    ),
    max_size=30,
)


class Exchange:
    """A client of h2 connected to our server side; both check every frame of the other."""

    def __init__(self, cuts: list[int]) -> None:
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding=None))
        self.server = GrpcConnection(1 << 20)
        self.client.initiate_connection()
        self.cuts = itertools.cycle(cuts or [1 << 20])
        self.open: dict[int, bytes] = {}
        self.received: dict[int, bytes] = {}
        self.expected: dict[int, bytes] = {}
        self.statuses: dict[int, int] = {}
        self.answered: dict[int, int] = {}
        self.resets: set[int] = set()

    def transfer(self) -> None:
        """Exchange bytes, in parts of any size, until neither side has more to send."""
        while True:
            to_server, to_client = self.client.data_to_send(), self.server.take()
            if not to_server and not to_client:
                return
            while to_server:
                size = next(self.cuts)
                for event in self.server.feed(to_server[:size]):
                    self._serve(event)
                to_server = to_server[size:]
            while to_client:
                size = next(self.cuts)
                for received in self.client.receive_data(to_client[:size]):
                    self._receive(received)
                to_client = to_client[size:]

    def _serve(self, event: object) -> None:
        if isinstance(event, CallStarted):
            self.open[event.stream] = b""
        elif isinstance(event, MessageReceived):
            self.open[event.stream] += event.message
        elif isinstance(event, CallReset):
            self.open.pop(event.stream, None)
            self.resets.add(event.stream)
        else:
            assert isinstance(event, HalfClosed)

    def _receive(self, event: object) -> None:
        if isinstance(event, h2.events.DataReceived):
            self.received[event.stream_id] = self.received.get(event.stream_id, b"") + event.data
            self.client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            headers = dict(event.headers)
            if b"grpc-status" in headers:
                self.statuses[event.stream_id] = int(headers[b"grpc-status"])
        elif isinstance(event, h2.events.ConnectionTerminated):
            pytest.fail(f"the server ended the connection: {event.additional_data!r}")

    def call(self, size: int) -> None:
        stream = self.client.get_next_available_stream_id()
        self.client.send_headers(stream, CALL)
        message = bytes(size % 251 for _ in range(size))
        data = b"\0" + len(message).to_bytes(4, "big") + message
        for begin in range(0, len(data), 16384):
            self.client.send_data(stream, data[begin : begin + 16384])
            self.transfer()
        self.client.end_stream(stream)
        self.transfer()
        assert self.open[stream] == message

    def reset(self, index: int) -> None:
        if self.open:
            stream = sorted(self.open)[index % len(self.open)]
            self.client.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
            self.transfer()
            assert stream in self.resets

    def finish(self, size: int, status: int) -> None:
        if not self.open:
            return
        stream = min(self.open)
        del self.open[stream]
        if status:
            self.server.finish(stream, status, "no: 100 %\n")
        else:
            message = b"y" * size
            self.server.respond(stream, message)
            self.expected[stream] = len(message).to_bytes(5, "big") + message
        self.answered[stream] = status


@settings(max_examples=examples(60, 2000), deadline=None)
@given(OPERATIONS, st.lists(st.integers(1, 5000), max_size=4))
def test_client_of_h2_and_our_server_agree(operations: list[tuple[str, int]], cuts: list[int]) -> None:
    exchange = Exchange(cuts)
    exchange.transfer()
    for name, value in operations:
        if name == "call":
            exchange.call(value)
        elif name == "reset":
            exchange.reset(value)
        elif name == "ping":
            exchange.client.ping(b"12345678")
        elif name == "window":
            exchange.client.increment_flow_control_window(value)
        elif name == "settings":
            exchange.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: value})
        else:
            exchange.finish(value, value % 17 if name == "fail" else 0)
        exchange.transfer()
    if exchange.client.remote_settings is not None:  # let blocked responses through
        exchange.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1 << 22})
        exchange.client.increment_flow_control_window(1 << 22)
    exchange.transfer()
    assert exchange.statuses == exchange.answered
    assert {stream: data for stream, data in exchange.received.items() if data} == exchange.expected


HEADER_BLOCK = b"\x83\x86" + encode_header(b":path", b"/x") + encode_header(b"content-type", b"application/grpc")
BEGIN = http2.PREFACE + frame(http2.SETTINGS, 0, 0)
OPEN = frame(http2.HEADERS, http2.END_HEADERS, 1, HEADER_BLOCK)
INVALID = {
    "no SETTINGS first": http2.PREFACE + frame(http2.PING, 0, 0, bytes(8)),
    "DATA on stream 0": BEGIN + frame(http2.DATA, 0, 0, b"x"),
    "HEADERS on stream 0": BEGIN + frame(http2.HEADERS, http2.END_HEADERS, 0, HEADER_BLOCK),
    "HEADERS on an even stream": BEGIN + frame(http2.HEADERS, http2.END_HEADERS, 2, HEADER_BLOCK),
    "a lower stream": BEGIN + frame(http2.HEADERS, 5, 5, HEADER_BLOCK) + frame(http2.HEADERS, 4, 3, HEADER_BLOCK),
    "PRIORITY on stream 0": BEGIN + frame(http2.PRIORITY, 0, 0, bytes(5)),
    "RST_STREAM on stream 0": BEGIN + http2.rst_stream(0, 0),
    "RST_STREAM of an idle stream": BEGIN + http2.rst_stream(1, 0),
    "RST_STREAM of a wrong size": BEGIN + OPEN + frame(http2.RST_STREAM, 0, 1, bytes(3)),
    "SETTINGS on a stream": BEGIN + frame(http2.SETTINGS, 0, 1),
    "SETTINGS acknowledgement with a payload": BEGIN + frame(http2.SETTINGS, http2.ACK, 0, bytes(6)),
    "SETTINGS of a wrong size": BEGIN + frame(http2.SETTINGS, 0, 0, bytes(5)),
    "SETTINGS_ENABLE_PUSH 2": BEGIN + frame(http2.SETTINGS, 0, 0, b"\0\2\0\0\0\2"),
    "SETTINGS_INITIAL_WINDOW_SIZE too large": BEGIN + frame(http2.SETTINGS, 0, 0, b"\0\4\x80\0\0\0"),
    "SETTINGS_MAX_FRAME_SIZE too small": BEGIN + frame(http2.SETTINGS, 0, 0, b"\0\5\0\0\0\1"),
    "PUSH_PROMISE": BEGIN + OPEN + frame(http2.PUSH_PROMISE, http2.END_HEADERS, 1, bytes(4) + HEADER_BLOCK),
    "PING on a stream": BEGIN + frame(http2.PING, 0, 1, bytes(8)),
    "PING of a wrong size": BEGIN + frame(http2.PING, 0, 0, bytes(7)),
    "GOAWAY on a stream": BEGIN + frame(http2.GOAWAY, 0, 1, bytes(8)),
    "WINDOW_UPDATE of 0": BEGIN + http2.window_update(0, 0),
    "WINDOW_UPDATE of a wrong size": BEGIN + frame(http2.WINDOW_UPDATE, 0, 0, bytes(3)),
    "WINDOW_UPDATE beyond the limit": BEGIN + http2.window_update(0, (1 << 31) - 1),
    "WINDOW_UPDATE of an idle stream": BEGIN + http2.window_update(1, 1),
    "CONTINUATION without HEADERS": BEGIN + frame(http2.CONTINUATION, http2.END_HEADERS, 1, b""),
    "interrupted header block": BEGIN + frame(http2.HEADERS, 0, 1, HEADER_BLOCK) + frame(http2.PING, 0, 0, bytes(8)),
    "invalid header block": BEGIN + frame(http2.HEADERS, http2.END_HEADERS, 1, b"\xff\xff\xff\xff\xff"),
    "padding longer than the frame": BEGIN + OPEN + frame(http2.DATA, http2.PADDED, 1, b"\5abc"),
}


@pytest.mark.parametrize("name", list(INVALID))
def test_connection_error_is_found_by_both(name: str) -> None:
    data = INVALID[name]
    with pytest.raises(Http2Error):
        GrpcConnection(1 << 20).feed(data)
    if name != "no SETTINGS first":  # h2 does not check it
        theirs = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        theirs.initiate_connection()
        with pytest.raises(h2.exceptions.ProtocolError):
            theirs.receive_data(data)


MALFORMED = {
    "uppercase name": [*CALL, ("X-Upper", "1")],
    "connection header": [*CALL, ("connection", "close")],
    "te other than trailers": [header for header in CALL if header[0] != "te"] + [("te", "gzip")],
    "pseudo-header after a header": [*CALL[1:], CALL[0]],
    "unknown pseudo-header": [(":unknown", "1"), *CALL],
    "response pseudo-header": [(":status", "200"), *CALL],
    "no method": CALL[1:],
    "no scheme": [CALL[0], *CALL[2:]],
    "no path": [header for header in CALL if header[0] != ":path"],
    "empty path": [(name, "" if name == ":path" else value) for name, value in CALL],
    "two methods": [CALL[0], *CALL],
}


@pytest.mark.parametrize("name", list(MALFORMED))
def test_malformed_request_is_refused_by_both(name: str) -> None:
    """A malformed request is an error of its stream or of the connection (RFC 9113, section 8.1.1)."""
    block = b"".join(encode_header(key.encode(), value.encode()) for key, value in MALFORMED[name])
    data = BEGIN + frame(http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, 1, block)
    connection = GrpcConnection(1 << 20)
    events = connection.feed(data)
    assert not any(isinstance(event, CallStarted) for event in events)
    assert http2.rst_stream(1, http2.PROTOCOL_ERROR) in connection.take()
    theirs = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    theirs.initiate_connection()
    with pytest.raises(h2.exceptions.ProtocolError):
        theirs.receive_data(data)


def test_well_formed_requests_are_accepted() -> None:
    headers = tuple((name.encode(), value.encode()) for name, value in CALL)
    assert read_call_headers(headers).path == CALL[3][1]


REQUEST_PARTS = st.tuples(
    st.sampled_from([b"GET", b"POST", b"get", b"G(T", b""]),
    st.sampled_from([b"/v2", b"/", b"", b"*", b"/a b", b"http://a/v2", b"/\x7f"]),
    st.sampled_from([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.1 ", b"http/1.1"]),
    st.lists(
        st.sampled_from(
            [
                b"Host: a",
                b"Host: a",
                b"Content-Length: 3",
                b"Content-Length: 3",
                b"Content-Length: +3",
                b"Content-Length: 3, 3",
                b"Content-Length: 4",
                b"Transfer-Encoding: chunked",
                b"Transfer-Encoding: gzip, chunked",
                b"Transfer-Encoding: identity",
                b"Connection: close",
                b"Connection: keep-alive",
                b"X : 1",
                b" folded",
                b"X: \x00",
                b"X: \xe4",
                b"X",
                b": empty",
            ]
        ),
        max_size=4,
    ),
    st.sampled_from([b"", b"abc", b"3\r\nabc\r\n0\r\n\r\n", b"3;x=y\r\nabc\r\n0\r\n\r\n", b"g\r\nabc", b"abcGET / "]),
)


def read_by_h11(data: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Return the method, target and body of the first request, or None if it is invalid or incomplete."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 16)
    connection.receive_data(data)
    try:
        request = connection.next_event()
        if not isinstance(request, h11.Request):
            return None
        body = b""
        while isinstance(event := connection.next_event(), h11.Data):
            body += bytes(event.data)
    except h11.RemoteProtocolError:
        return None
    return (request.method, request.target, body) if isinstance(event, h11.EndOfMessage) else None


def read_by_us(data: bytes) -> tuple[bytes, bytes, bytes] | None:
    reader = HttpReader(1000)
    with contextlib.suppress(HttpError):
        reader.feed(data)
    request = reader.next()
    if request is None:
        return None
    return request.head.method.encode(), request.head.target.encode(), bytes(request.body)


@settings(max_examples=examples(400, 20000))
@given(REQUEST_PARTS)
def test_what_we_accept_is_read_equally_by_h11(parts: tuple[bytes, bytes, bytes, list[bytes], bytes]) -> None:
    """Our parser may be stricter, but it never reads a request differently, which would allow request smuggling."""
    method, target, version, fields, body = parts
    data = b"\r\n".join([b" ".join((method, target, version)), *fields]) + b"\r\n\r\n" + body
    mine = read_by_us(data)
    if mine is not None:
        assert mine == read_by_h11(data)


@pytest.mark.parametrize(
    "data",
    [
        b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nhOsT:a\r\nTRANSFER-encoding: CHUNKED\r\n\r\n3;x=y\r\nabc\r\n00\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET http://a/v2 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
)
def test_valid_requests_are_accepted_by_both(data: bytes) -> None:
    mine = read_by_us(data)
    assert mine is not None
    assert mine == read_by_h11(data)
