"""Connections return everything that they reserve from the shared budgets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.serve.protocol.budget import ByteBudget
from cotenant.serve.protocol.grpc.connection import GrpcConnection
from cotenant.serve.protocol.http1.request import HttpError, HttpReader
from cotenant.serve.protocol.http2 import frames as http2
from cotenant.serve.protocol.http2.frames import Http2Error, frame
from cotenant.serve.protocol.http2.hpack import encode_header

BEGIN = http2.PREFACE + frame(http2.SETTINGS, 0, 0)
HEADERS = b"\x83\x86" + encode_header(b":path", b"/s/m") + encode_header(b"content-type", b"application/grpc")
OPEN = frame(http2.HEADERS, http2.END_HEADERS, 1, HEADERS)
HEAD = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 600\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


@given(st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=700)), max_size=12))
def test_readers_return_their_budget(chunks: list[tuple[int, bytes]]) -> None:
    budget = ByteBudget(1000)
    readers = [HttpReader(800, budget) for _ in range(3)]
    broken = set()
    for index, data in chunks:
        if index not in broken:
            try:
                readers[index].feed(data if index else HEAD + data)
            except HttpError:
                broken.add(index)
            readers[index].next()
        assert 0 <= budget.used_bytes <= 1000
    for reader in readers:
        reader.close()
    assert budget.used_bytes == 0


def test_partial_body_counts_against_the_budget() -> None:
    budget = ByteBudget(1000)
    first, second = HttpReader(800, budget), HttpReader(800, budget)
    first.feed(HEAD + bytes(500))
    with pytest.raises(HttpError) as caught:
        second.feed(HEAD + bytes(501))
    assert (caught.value.status, caught.value.retry_after_s) == (429, 1)
    assert budget.used_bytes == 500
    first.feed(bytes(100))
    assert budget.used_bytes == 600
    assert first.next() is not None
    assert budget.used_bytes == 0


def test_chunks_of_one_byte() -> None:
    reader = HttpReader(100_000, ByteBudget(200_000))
    reader.feed(CHUNKED + b"1\r\nx\r\n" * 30_000 + b"0\r\n\r\n")
    request = reader.next()
    assert request is not None
    assert bytes(request.body) == b"x" * 30_000


def test_partial_message_counts_against_the_budget() -> None:
    budget = ByteBudget(1000)
    connection = GrpcConnection(800, budget)
    connection.feed(BEGIN + OPEN + frame(http2.DATA, 0, 1, (700).to_bytes(5, "big") + bytes(400)))
    assert budget.used_bytes == 405
    other = GrpcConnection(800, budget)
    other.feed(BEGIN + OPEN + frame(http2.DATA, 0, 1, (700).to_bytes(5, "big") + bytes(600)))
    assert other.calls == 0  # rejected: the budget was exhausted
    connection.feed(frame(http2.DATA, 0, 1, bytes(300)))
    assert budget.used_bytes == 0


@given(
    st.lists(st.tuples(st.sampled_from(["send", "widen", "all", "reset", "finish"]), st.integers(1, 900)), max_size=20)
)
def test_unread_responses_are_bounded(steps: list[tuple[str, int]]) -> None:
    """The client's windows open step by step."""
    budget = ByteBudget(2000)
    connection = GrpcConnection(800, None, budget)
    closed = frame(http2.SETTINGS, 0, 0, b"\x00\x04" + (0).to_bytes(4, "big"))
    connection.feed(BEGIN + closed + OPEN + frame(http2.HEADERS, http2.END_HEADERS, 3, HEADERS))
    for step, number in steps:
        stream = 1 + 2 * (number % 2)
        try:
            if step == "send":
                connection.send(stream, bytes(number))
            elif step == "finish":
                connection.finish(stream)
            elif step == "widen":
                connection.feed(http2.window_update(stream, number))
            elif step == "all":
                connection.feed(http2.window_update(0, number))
            else:
                connection.feed(http2.rst_stream(stream, http2.CANCEL))
        except Http2Error:
            break
        assert 0 <= budget.used_bytes == connection.held_bytes() <= 2000
    connection.close()
    assert budget.used_bytes == connection.held_bytes() == 0
