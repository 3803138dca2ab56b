"""HTTP parsing does not depend on how bytes are split, and invalid bytes are rejected."""

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cotenant.serve.protocol.http1.request import HttpError, HttpReader
from cotenant.serve.protocol.oip.infer import InferError
from cotenant.serve.protocol.oip.path import parse_route
from tests.support.effort import examples

LIMIT = 1000
HEADS = st.sampled_from(
    [
        b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /v2/models/m/infer HTTP/1.1\r\nhost:a\r\nContent-Length: 5\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=1\r\nde\r\n0\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        b"POST /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n\r\n",
    ]
)
REQUESTS = st.lists(HEADS, min_size=1, max_size=4).map(b"".join)


def read(parts: list[bytes]) -> list[tuple[str, str, bool, bytes]]:
    reader = HttpReader(LIMIT)
    requests = []
    for part in parts:
        reader.feed(part)
        while (request := reader.next()) is not None:
            requests.append((request.head.method, request.head.target, request.head.keep_alive, bytes(request.body)))
    assert not reader.mid_request
    return requests


@given(REQUESTS, st.lists(st.integers(0, 400), max_size=6))
def test_requests_do_not_depend_on_how_bytes_are_split(text: bytes, cuts: list[int]) -> None:
    offsets = sorted({0, len(text), *(cut % len(text) for cut in cuts)})
    parts = [text[begin:end] for begin, end in itertools.pairwise(offsets)]
    assert read(parts) == read([text])
    assert read([text[offset : offset + 1] for offset in range(len(text))]) == read([text])


@given(st.binary(max_size=300))
@example(b"\r\n\r\n")
def test_arbitrary_bytes_are_parsed_or_rejected(garbage: bytes) -> None:
    reader = HttpReader(LIMIT)
    status = 400
    try:
        reader.feed(garbage)
    except HttpError as error:
        status = error.status
    assert 400 <= status < 600


@settings(max_examples=examples(80, 2000))
@given(REQUESTS, st.integers(0, 200), st.binary(min_size=1, max_size=4))
def test_corrupted_request_is_parsed_or_rejected(text: bytes, offset: int, change: bytes) -> None:
    offset %= len(text)
    reader = HttpReader(LIMIT)
    status = 400
    try:
        reader.feed(text[:offset] + change + text[offset + len(change) :])
    except HttpError as error:
        status = error.status
    assert 400 <= status < 600


@pytest.mark.parametrize(
    "lines, status",
    [
        ("Host: a\r\nContent-Length: 5\r\nContent-Length: 6", 400),
        ("Host: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked", 400),
        ("Host: a\r\nTransfer-Encoding: gzip, chunked", 501),
        ("Host: a\r\nContent-Length: +5", 400),
        ("Host: a\r\nContent-Length: 5 5", 400),
        ("Host : a", 400),
        ("Host: a\r\n folded", 400),
        ("X: y", 400),
        ("Host: a\r\nHost: b", 400),
        ("Host: a\r\nContent-Length: 1001", 413),
        ("Host: a\r\nX: " + "y" * (16 << 10), 431),
    ],
)
def test_ambiguous_or_oversized_head_is_rejected(lines: str, status: int) -> None:
    with pytest.raises(HttpError) as caught:
        HttpReader(LIMIT).feed(f"POST /x HTTP/1.1\r\n{lines}\r\n\r\n".encode())
    assert caught.value.status == status


def test_total_size_of_chunks_is_limited() -> None:
    reader = HttpReader(10)
    reader.feed(b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nabcdef\r\n")
    with pytest.raises(HttpError) as caught:
        reader.feed(b"5\r\nabcde\r\n")
    assert caught.value.status == 413


@given(st.text(max_size=60))
def test_arbitrary_target_is_parsed_or_not_found(target: str) -> None:
    kind = "not-found"
    try:
        parse_route("/v2/" + target)
    except InferError as error:
        kind = error.kind
    assert kind == "not-found"
