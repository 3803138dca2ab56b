"""gRPC parsing does not depend on how bytes are split, and invalid bytes are rejected."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.serve.protocol.compression import Decompression, compress
from cotenant.serve.protocol.grpc.calls import STATUS_OK, CallEvent, CallReset, CallStarted, HalfClosed, MessageReceived
from cotenant.serve.protocol.grpc.connection import GrpcConnection
from cotenant.serve.protocol.grpc.status import read_timeout
from cotenant.serve.protocol.http2 import frames as http2
from cotenant.serve.protocol.http2.frames import Http2Error, frame
from cotenant.serve.protocol.http2.hpack import STATIC, HpackDecoder, HpackError, encode_header, huffman_decode
from tests.support.effort import examples

LIMIT = 100_000
BEGIN = http2.PREFACE + frame(http2.SETTINGS, 0, 0)
HEADERS = b"\x83\x86" + encode_header(b":path", b"/s/m") + encode_header(b"content-type", b"application/grpc")


def prefixed(message: bytes, *, compressed: bool = False) -> bytes:
    return bytes([compressed]) + len(message).to_bytes(4, "big") + message


def call(stream: int, message: bytes, headers: bytes = HEADERS) -> bytes:
    ends = http2.END_STREAM
    return frame(http2.HEADERS, http2.END_HEADERS, stream, headers) + frame(http2.DATA, ends, stream, prefixed(message))


def test_unary_call_is_received_and_answered() -> None:
    connection = GrpcConnection(LIMIT)
    assert connection.feed(BEGIN + call(1, b"hello")) == [
        CallStarted(1, "/s/m", 0),
        MessageReceived(1, b"hello"),
        HalfClosed(1),
    ]
    connection.take()
    connection.respond(1, b"world")
    frames = frames_of(connection.take())
    assert [frame_.kind for frame_ in frames] == [http2.HEADERS, http2.DATA, http2.HEADERS]
    assert frames[1].payload == prefixed(b"world")
    assert dict(HpackDecoder().decode(frames[2].payload))[b"grpc-status"] == b"0"
    assert connection.calls == 0


def frames_of(data: bytes) -> list[http2.Frame]:
    reader = http2.FrameReader()
    assert reader.feed(http2.PREFACE) == []
    return reader.feed(data)


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=5), st.lists(st.integers(0, 2000), max_size=8))
def test_events_do_not_depend_on_how_bytes_are_split(messages: list[bytes], cuts: list[int]) -> None:
    text = BEGIN + b"".join(call(2 * index + 1, message) for index, message in enumerate(messages))
    offsets = sorted({0, len(text), *(cut % len(text) for cut in cuts)})
    connection = GrpcConnection(LIMIT)
    events: list[CallEvent] = []
    for begin, end in itertools.pairwise(offsets):
        events += connection.feed(text[begin:end])
    assert events == GrpcConnection(LIMIT).feed(text)
    assert [event.message for event in events if isinstance(event, MessageReceived)] == messages


@given(st.binary(max_size=300))
def test_message_split_over_frames_is_reassembled(message: bytes) -> None:
    connection = GrpcConnection(LIMIT)
    data = prefixed(message)
    text = BEGIN + frame(http2.HEADERS, http2.END_HEADERS, 1, HEADERS)
    text += b"".join(frame(http2.DATA, 0, 1, data[offset : offset + 7]) for offset in range(0, len(data), 7))
    events = connection.feed(text + frame(http2.DATA, http2.END_STREAM, 1))
    assert events[1:] == [MessageReceived(1, message), HalfClosed(1)]


frames = st.builds(frame, st.integers(0, 11), st.integers(0, 255), st.integers(0, 9), st.binary(max_size=40))


@settings(max_examples=examples(100, 3000))
@given(st.lists(frames | st.binary(max_size=30), max_size=12))
def test_arbitrary_frames_are_handled_or_end_with_goaway(parts: list[bytes]) -> None:
    connection = GrpcConnection(LIMIT)
    open_calls: set[int] = set()
    try:
        for part in [BEGIN, call(1, b"x"), *parts]:
            for event in connection.feed(part):
                if isinstance(event, CallStarted):
                    assert event.stream not in open_calls
                    open_calls.add(event.stream)
                elif isinstance(event, CallReset):
                    open_calls.remove(event.stream)
    except Http2Error:
        last_frame = frames_of(connection.take())[-1]
        assert last_frame.kind == http2.GOAWAY
    for stream in open_calls:
        connection.respond(stream, b"y")
    connection.take()


@given(st.integers(1, 60_000), st.integers(11, 3000), st.integers(1, 200_000))
def test_response_respects_flow_control_windows(stream_window: int, step: int, length: int) -> None:
    settings_frame = frame(http2.SETTINGS, 0, 0, (4).to_bytes(2, "big") + stream_window.to_bytes(4, "big"))
    connection = GrpcConnection(LIMIT)
    connection.feed(http2.PREFACE + settings_frame + call(1, b"x"))
    connection.take()
    connection.respond(1, bytes(length))
    windows = {0: 65535, 1: stream_window}
    received = 0
    ended = False
    for _ in range(200):
        for frame_ in frames_of(connection.take()):
            if frame_.kind == http2.DATA:
                received += len(frame_.payload)
                windows = {window_stream: size - len(frame_.payload) for window_stream, size in windows.items()}
                assert min(windows.values()) >= 0
            ended |= frame_.kind == http2.HEADERS and bool(frame_.flags & http2.END_STREAM)
        if ended:
            break
        for stream in windows:
            windows[stream] += step * 100
            connection.feed(http2.window_update(stream, step * 100))
    assert received <= length + 5
    assert ended == (received == length + 5)


def test_oversized_message_is_rejected_and_connection_stays_open() -> None:
    connection = GrpcConnection(10)
    events = connection.feed(BEGIN + call(1, b"x" * 11) + call(3, b"y"))
    assert events[1:] == [CallStarted(3, "/s/m", 0), MessageReceived(3, b"y"), HalfClosed(3)]
    trailers = [frame_ for frame_ in frames_of(connection.take()) if frame_.kind == http2.HEADERS]
    assert dict(HpackDecoder().decode(trailers[0].payload))[b"grpc-status"] == b"8"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_decompressed_message_size_is_limited(encoding: str) -> None:
    headers = HEADERS + encode_header(b"grpc-encoding", encoding.encode())
    for plain, expected in ((b"a" * 50, [b"a" * 50]), (b"a" * 5000, [])):
        connection = GrpcConnection(100)
        text = BEGIN + frame(http2.HEADERS, http2.END_HEADERS, 1, headers)
        compressed = frame(http2.DATA, http2.END_STREAM, 1, prefixed(compress(plain, encoding), compressed=True))
        events = connection.feed(text + compressed)
        assert [event.message for event in events if isinstance(event, MessageReceived)] == expected


def test_large_decompressed_messages_are_left_to_a_thread() -> None:
    """The limit of a megabyte holds for one read, not for each message."""
    headers = HEADERS + encode_header(b"grpc-encoding", b"gzip")
    text = BEGIN + frame(http2.HEADERS, http2.END_HEADERS, 1, headers)
    plains = (b"a" * 600_000, b"b" * 600_000, b"c" * 400_000, b"d" * 3_000_000, b"e" * 100)
    for plain in plains:
        text += frame(http2.DATA, 0, 1, prefixed(compress(plain, "gzip"), compressed=True))
    events = [event for event in GrpcConnection(1 << 22).feed(text) if isinstance(event, MessageReceived)]
    assert [event.compressed is None for event in events] == [True, False, True, False, True]
    assert (
        tuple(event.message if event.compressed is None else finished(event.compressed) for event in events) == plains
    )


def finished(compressed: Decompression) -> bytes:
    while not compressed.step(100):
        pass
    return bytes(compressed.result)


@given(st.binary(max_size=300), st.integers(0, 400), st.integers(-1, 400), st.sampled_from(["gzip", "deflate"]))
def test_decompression_result_does_not_depend_on_the_inline_limit(
    plain: bytes, limit: int, inline_limit: int, encoding: str
) -> None:
    def decompress() -> tuple[bytearray | None, bytes]:
        compressed = Decompression(compress(plain, encoding), encoding, limit)
        return compressed.begin(inline_limit), finished(compressed)

    if len(plain) > limit:
        with pytest.raises(ValueError, match="decompresses to more than"):
            decompress()
    else:
        first_result, result = decompress()
        assert result == plain
        assert first_result == (plain if inline_limit > 0 and len(plain) <= inline_limit else None)


@given(st.binary(min_size=1, max_size=300), st.data(), st.integers(0, 400))
def test_truncated_gzip_is_rejected_for_any_inline_limit(plain: bytes, data: st.DataObject, inline_limit: int) -> None:
    compressed = compress(plain, "gzip")
    decompression = Decompression(compressed[: data.draw(st.integers(0, len(compressed) - 1))], "gzip", 1000)
    with pytest.raises(ValueError, match="truncated"):
        (decompression.begin(inline_limit), finished(decompression))


@pytest.mark.parametrize(
    "control_frame",
    [
        frame(http2.PING, 0, 0, bytes(8)),
        frame(http2.SETTINGS, 0, 0),
        frame(http2.SETTINGS, 0, 0, b"\0\4\0\1\0\0"),
        frame(http2.PRIORITY, 0, 1, bytes(5)),
        frame(0xEE, 0, 0, b"unknown"),
        frame(http2.WINDOW_UPDATE, 0, 0, b"\0\0\0\1"),
        frame(http2.HEADERS, 0, 1) + frame(http2.CONTINUATION, 0, 1, b"\x82") * 100,
    ],
)
def test_flood_of_control_frames_is_cut_off(control_frame: bytes) -> None:
    connection = GrpcConnection(LIMIT)
    connection.feed(BEGIN)
    with pytest.raises(Http2Error) as caught:
        connection.feed(control_frame * 1000)
    assert caught.value.code == http2.ENHANCE_YOUR_CALM
    assert connection.take().count(b"too ") == 1


def test_windows_that_grow_a_byte_at_a_time_are_cut_off() -> None:
    """Each increment would cost a frame, or a search through all calls that are blocked by their own windows."""
    connection = GrpcConnection(LIMIT)
    connection.feed(http2.PREFACE + frame(http2.SETTINGS, 0, 0, b"\0\4\0\0\0\0"))  # no window for any call
    for stream in (1, 3):
        connection.feed(call(stream, b"x"))
        connection.respond(stream, bytes(4000))
    connection.renew_control_frames()
    increment = frame(http2.WINDOW_UPDATE, 0, 1, b"\0\0\0\1")
    with pytest.raises(Http2Error) as caught:
        connection.feed(increment * 3000)
    assert caught.value.code == http2.ENHANCE_YOUR_CALM


def test_client_that_acknowledges_every_frame_is_served() -> None:
    connection = GrpcConnection(LIMIT)
    connection.feed(BEGIN)
    for stream in range(1, 2001, 2):
        connection.feed(call(stream, b"x"))
        connection.respond(stream, bytes(10))
        assert connection.take().endswith(STATUS_OK)
        connection.feed(b"".join(frame(http2.WINDOW_UPDATE, 0, which, b"\0\0\0\x0f") for which in (0, stream)))


def test_control_frames_of_a_working_client_are_answered() -> None:
    connection = GrpcConnection(LIMIT)
    connection.feed(BEGIN)
    ping = frame(http2.PING, 0, 0, b"12345678")
    connection.take()
    for stream in range(1, 2001, 2):  # a client that measures its bandwidth sends PING with its data
        connection.feed(call(stream, b"x") + ping)
        connection.finish(stream)
        assert connection.take().count(b"12345678") == 1
    for _ in range(10):  # and one that keeps an idle connection open sends some between two sweeps
        connection.feed(ping * 100)
        connection.renew_control_frames()


def test_client_that_resets_every_call_is_disconnected() -> None:
    connection = GrpcConnection(LIMIT)
    connection.feed(BEGIN)
    calls = b"".join(call(stream, b"x") + http2.rst_stream(stream, http2.CANCEL) for stream in range(1, 20_001, 2))
    with pytest.raises(Http2Error) as caught:
        connection.feed(calls)
    assert caught.value.code == http2.ENHANCE_YOUR_CALM


def test_hpack_decodes_the_examples_of_the_rfc() -> None:
    """RFC 7541, C.4: three requests with Huffman-coded headers and one dynamic table."""
    decoder = HpackDecoder()
    expected = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")]
    first = bytes.fromhex("828684418cf1e3c2e5f23a6ba0ab90f4ff")
    assert decoder.decode(first) == tuple(expected)
    second = bytes.fromhex("828684be5886a8eb10649cbf")
    assert decoder.decode(second) == (*expected, (b"cache-control", b"no-cache"))
    third = bytes.fromhex("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf")
    headers = decoder.decode(third)
    assert headers[3:] == ((b":authority", b"www.example.com"), (b"custom-key", b"custom-value"))
    assert (len(STATIC), STATIC[60]) == (61, (b"www-authenticate", b""))


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=200), st.binary(max_size=200)), max_size=8))
def test_headers_round_trip(headers: list[tuple[bytes, bytes]]) -> None:
    assert HpackDecoder().decode(b"".join(encode_header(*header) for header in headers)) == tuple(headers)


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_arbitrary_header_blocks_are_decoded_or_rejected(blocks: list[bytes]) -> None:
    decoder = HpackDecoder()
    try:
        for block in blocks:
            assert decoder.decode(block) is not None
            huffman_decode(block)
    except HpackError:
        pass


@pytest.mark.parametrize(
    "text, expected_ns", [("", 0), ("5S", 5 * 10**9), ("100m", 10**8), ("0n", 1), ("99999999H", 1 << 62)]
)
def test_valid_timeout_is_parsed(text: str, expected_ns: int) -> None:
    assert read_timeout(text) == expected_ns


@pytest.mark.parametrize("text", ["5", "S", "-1S", "1s", "123456789S", "1.5S"])
def test_invalid_timeout_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read_timeout(text)
