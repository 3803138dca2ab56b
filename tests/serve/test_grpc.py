"""gRPC parsing does not depend on how bytes are split, and invalid bytes are rejected."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.serve.protocol.compression import Decompression, compress
from cotenant.serve.protocol.grpc.calls import CallEvent, CallReset, CallStarted, HalfClosed, MessageReceived
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


def test_a_call_is_heard_and_answered() -> None:
    connection = GrpcConnection(LIMIT)
    assert connection.feed(BEGIN + call(1, b"hello")) == [
        CallStarted(1, "/s/m", 0),
        MessageReceived(1, b"hello"),
        HalfClosed(1),
    ]
    connection.take()
    connection.respond(1, b"world")
    frames = frames_of(connection.take())
    assert [one.kind for one in frames] == [http2.HEADERS, http2.DATA, http2.HEADERS]
    assert frames[1].payload == prefixed(b"world")
    assert dict(HpackDecoder().decode(frames[2].payload))[b"grpc-status"] == b"0"
    assert connection.calls == 0


def frames_of(data: bytes) -> list[http2.Frame]:
    reader = http2.FrameReader()
    assert reader.feed(http2.PREFACE) == []
    return reader.feed(data)


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=5), st.lists(st.integers(0, 2000), max_size=8))
def test_cuts_change_nothing(messages: list[bytes], cuts: list[int]) -> None:
    text = BEGIN + b"".join(call(2 * place + 1, message) for place, message in enumerate(messages))
    places = sorted({0, len(text), *(cut % len(text) for cut in cuts)})
    connection = GrpcConnection(LIMIT)
    found: list[CallEvent] = []
    for begin, end in itertools.pairwise(places):
        found += connection.feed(text[begin:end])
    assert found == GrpcConnection(LIMIT).feed(text)
    assert [one.message for one in found if isinstance(one, MessageReceived)] == messages


@given(st.binary(max_size=300))
def test_a_message_may_come_in_any_frames(message: bytes) -> None:
    connection = GrpcConnection(LIMIT)
    data = prefixed(message)
    text = BEGIN + frame(http2.HEADERS, http2.END_HEADERS, 1, HEADERS)
    text += b"".join(frame(http2.DATA, 0, 1, data[place : place + 7]) for place in range(0, len(data), 7))
    found = connection.feed(text + frame(http2.DATA, http2.END_STREAM, 1))
    assert found[1:] == [MessageReceived(1, message), HalfClosed(1)]


frames = st.builds(frame, st.integers(0, 11), st.integers(0, 255), st.integers(0, 9), st.binary(max_size=40))


@settings(max_examples=examples(100, 3000))
@given(st.lists(frames | st.binary(max_size=30), max_size=12))
def test_any_frames_are_read_or_refused(parts: list[bytes]) -> None:
    connection = GrpcConnection(LIMIT)
    open_calls: set[int] = set()
    try:
        for part in [BEGIN, call(1, b"x"), *parts]:
            for one in connection.feed(part):
                if isinstance(one, CallStarted):
                    assert one.stream not in open_calls
                    open_calls.add(one.stream)
                elif isinstance(one, CallReset):
                    open_calls.remove(one.stream)
    except Http2Error:
        last = frames_of(connection.take())[-1]
        assert last.kind == http2.GOAWAY
    for stream in open_calls:
        connection.respond(stream, b"y")
    connection.take()


@given(st.integers(1, 60_000), st.integers(1, 3000), st.integers(1, 200_000))
def test_an_answer_keeps_to_the_client_s_windows(stream_window: int, step: int, length: int) -> None:
    settings_frame = frame(http2.SETTINGS, 0, 0, (4).to_bytes(2, "big") + stream_window.to_bytes(4, "big"))
    connection = GrpcConnection(LIMIT)
    connection.feed(http2.PREFACE + settings_frame + call(1, b"x"))
    connection.take()
    connection.respond(1, bytes(length))
    room = {0: 65535, 1: stream_window}
    got = 0
    ended = False
    for _ in range(200):
        for one in frames_of(connection.take()):
            if one.kind == http2.DATA:
                got += len(one.payload)
                room = {place: left - len(one.payload) for place, left in room.items()}
                assert min(room.values()) >= 0
            ended |= one.kind == http2.HEADERS and bool(one.flags & http2.END_STREAM)
        if ended:
            break
        for stream in room:
            room[stream] += step * 100
            connection.feed(http2.window_update(stream, step * 100))
    assert got <= length + 5
    assert ended == (got == length + 5)


def test_what_is_too_long_is_refused_and_the_connection_goes_on() -> None:
    connection = GrpcConnection(10)
    found = connection.feed(BEGIN + call(1, b"x" * 11) + call(3, b"y"))
    assert found[1:] == [CallStarted(3, "/s/m", 0), MessageReceived(3, b"y"), HalfClosed(3)]
    trailers = [one for one in frames_of(connection.take()) if one.kind == http2.HEADERS]
    assert dict(HpackDecoder().decode(trailers[0].payload))[b"grpc-status"] == b"8"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_packed_messages_are_bounded(encoding: str) -> None:
    headers = HEADERS + encode_header(b"grpc-encoding", encoding.encode())
    for plain, heard in ((b"a" * 50, [b"a" * 50]), (b"a" * 5000, [])):
        connection = GrpcConnection(100)
        text = BEGIN + frame(http2.HEADERS, http2.END_HEADERS, 1, headers)
        compressed = frame(http2.DATA, http2.END_STREAM, 1, prefixed(compress(plain, encoding), compressed=True))
        found = connection.feed(text + compressed)
        assert [one.message for one in found if isinstance(one, MessageReceived)] == heard


def test_what_becomes_much_is_left_to_another_thread() -> None:
    """The limit of a megabyte holds for one read, not for each message."""
    headers = HEADERS + encode_header(b"grpc-encoding", b"gzip")
    text = BEGIN + frame(http2.HEADERS, http2.END_HEADERS, 1, headers)
    plains = (b"a" * 600_000, b"b" * 600_000, b"c" * 400_000, b"d" * 3_000_000, b"e" * 100)
    for plain in plains:
        text += frame(http2.DATA, 0, 1, prefixed(compress(plain, "gzip"), compressed=True))
    said = [one for one in GrpcConnection(1 << 22).feed(text) if isinstance(one, MessageReceived)]
    assert [one.compressed is None for one in said] == [True, False, True, False, True]
    assert tuple(one.message if one.compressed is None else one.compressed.finish() for one in said) == plains


@given(st.binary(max_size=300), st.integers(0, 400), st.integers(-1, 400), st.sampled_from(["gzip", "deflate"]))
def test_unpacking_may_stop_anywhere(plain: bytes, limit: int, most: int, encoding: str) -> None:
    def unpacked() -> tuple[bytes | None, bytes]:
        compressed = Decompression(compress(plain, encoding), encoding, limit)
        return compressed.begin(most), compressed.finish()

    if len(plain) > limit:
        with pytest.raises(ValueError, match="unpacks to more than"):
            unpacked()
    else:
        begun, whole = unpacked()
        assert whole == plain
        assert begun == (plain if most > 0 and len(plain) <= most else None)


@given(st.binary(min_size=1, max_size=300), st.data(), st.integers(0, 400))
def test_what_is_cut_off_is_refused_wherever_it_is_noticed(plain: bytes, data: st.DataObject, most: int) -> None:
    compressed = compress(plain, "gzip")
    unpacking = Decompression(compressed[: data.draw(st.integers(0, len(compressed) - 1))], "gzip", 1000)
    with pytest.raises(ValueError, match="cut off"):
        (unpacking.begin(most), unpacking.finish())


def test_a_client_that_only_resets_is_sent_away() -> None:
    connection = GrpcConnection(LIMIT)
    connection.feed(BEGIN)
    calls = b"".join(call(stream, b"x") + http2.rst_stream(stream, http2.CANCEL) for stream in range(1, 20_001, 2))
    with pytest.raises(Http2Error) as caught:
        connection.feed(calls)
    assert caught.value.code == http2.ENHANCE_YOUR_CALM


def test_hpack_as_the_standard_s_examples_have_it() -> None:
    """RFC 7541, C.4: three requests with Huffman-coded headers and one dynamic table."""
    decoder = HpackDecoder()
    wanted = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")]
    first = bytes.fromhex("828684418cf1e3c2e5f23a6ba0ab90f4ff")
    assert decoder.decode(first) == tuple(wanted)
    second = bytes.fromhex("828684be5886a8eb10649cbf")
    assert decoder.decode(second) == (*wanted, (b"cache-control", b"no-cache"))
    third = bytes.fromhex("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf")
    found = decoder.decode(third)
    assert found[3:] == ((b":authority", b"www.example.com"), (b"custom-key", b"custom-value"))
    assert (len(STATIC), STATIC[60]) == (61, (b"www-authenticate", b""))


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=200), st.binary(max_size=200)), max_size=8))
def test_headers_come_back(headers: list[tuple[bytes, bytes]]) -> None:
    assert HpackDecoder().decode(b"".join(encode_header(*one) for one in headers)) == tuple(headers)


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_any_block_is_read_or_refused(blocks: list[bytes]) -> None:
    decoder = HpackDecoder()
    try:
        for block in blocks:
            assert decoder.decode(block) is not None
            huffman_decode(block)
    except HpackError:
        pass


@pytest.mark.parametrize(
    "text, wanted", [("", 0), ("5S", 5 * 10**9), ("100m", 10**8), ("0n", 1), ("99999999H", 1 << 62)]
)
def test_timeouts(text: str, wanted: int) -> None:
    assert read_timeout(text) == wanted


@pytest.mark.parametrize("text", ["5", "S", "-1S", "1s", "123456789S", "1.5S"])
def test_timeouts_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read_timeout(text)
