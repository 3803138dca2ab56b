"""Client-side parsers do not depend on how bytes are split, and clients respect the server's limits."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.errors import ConfigError
from cotenant.serve.load.request import (
    InferenceRequest,
    InputTensor,
    ModelMetadata,
    TensorMetadata,
    content,
    http_request,
    synthetic_request,
)
from cotenant.serve.load.request_proto import grpc_request, read_metadata
from cotenant.serve.model.tensor import Datatype, TensorSpec
from cotenant.serve.protocol.grpc.calls import HalfClosed, MessageReceived
from cotenant.serve.protocol.grpc.client import CallEnded, GrpcClient, call_head, length_prefixed
from cotenant.serve.protocol.grpc.connection import GrpcConnection
from cotenant.serve.protocol.http1.request import HttpReader
from cotenant.serve.protocol.http1.response import ResponseError, ResponseReader
from cotenant.serve.protocol.http2 import frames as http2
from cotenant.serve.protocol.oip.infer_json import read_request
from cotenant.serve.protocol.oip.proto import TYPES
from cotenant.serve.protocol.oip.tensor import from_raw

HEAD = call_head("/s/m", "localhost:1")


def cut(text: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(text), *(one % len(text) for one in cuts)})
    return [text[begin:end] for begin, end in itertools.pairwise(places)]


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[place : place + size] for place in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\nx-trailer: 1\r\n\r\n"


@given(st.binary(max_size=300), st.integers(0, 40), st.lists(st.integers(0, 2000), max_size=8))
def test_an_answer_over_http_is_the_same_however_it_is_cut(body: bytes, size: int, cuts: list[int]) -> None:
    if size:
        text = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(body, size)
    else:
        text = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    reader = ResponseReader(keep=True)
    for _ in range(2):  # consecutive responses on one connection
        found = [answer for part in cut(text, cuts) if (answer := reader.feed(part))]
        assert [(head.status, head.keep_alive, said) for head, said in found] == [(200, True, body)]


@pytest.mark.parametrize(
    "text, status, keep_alive",
    [
        (b"HTTP/1.1 204 No Content\r\ncontent-length: 7\r\n\r\n", 204, True),
        (b"HTTP/1.1 503 no\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 503, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", 200, False),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 Later\r\nContent-Length: 0\r\n\r\n", 429, True),
    ],
)
def test_a_head_says_how_it_ended(text: bytes, status: int, keep_alive: bool) -> None:
    found = ResponseReader().feed(text)
    assert found is not None
    assert (found[0].status, found[0].keep_alive) == (status, keep_alive)


@pytest.mark.parametrize(
    "text",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n",
        b"x" * 100_000,
    ],
)
def test_what_is_no_answer_is_named(text: bytes) -> None:
    with pytest.raises(ResponseError):
        ResponseReader().feed(text)


@given(st.binary(max_size=300))
def test_no_bytes_do_worse_than_be_refused(noise: bytes) -> None:
    for feed in (ResponseReader().feed, GrpcClient().feed):
        try:
            feed(noise)
        except (ResponseError, http2.Http2Error):
            continue


@settings(max_examples=50)
@given(st.lists(st.integers(0, 60_000), min_size=1, max_size=8), st.lists(st.integers(0, 10**6), max_size=12))
def test_calls_are_answered_each_once_whatever_the_windows_hold_back(sizes: list[int], cuts: list[int]) -> None:
    """Client against server, both without I/O: messages arrive complete, and every call ends with its own response."""
    server, client = GrpcConnection(1 << 20), GrpcClient(keep=True)
    messages = [bytes([place]) * size for place, size in enumerate(sizes)]
    streams = [client.call(HEAD, length_prefixed(message)) for message in messages]
    said: dict[int, bytes] = {}
    ended: list[CallEnded] = []
    for _ in range(100):
        out = client.take()
        for part in cut(out, cuts) if out else ():
            for one in server.feed(part):
                if isinstance(one, MessageReceived):
                    said[one.stream] = one.message
                elif isinstance(one, HalfClosed):
                    server.respond(one.stream, said[one.stream])
        back = server.take()
        for part in cut(back, cuts) if back else ():
            ended += client.feed(part)
    assert said == dict(zip(streams, messages, strict=True))
    assert sorted(ended) == [CallEnded(*one) for one in zip(streams, [0] * len(sizes), messages, strict=True)]
    assert client.calls == 0


def test_what_the_server_refuses_resets_or_leaves_is_heard() -> None:
    server, client = GrpcConnection(100), GrpcClient()
    streams = [client.call(HEAD, length_prefixed(b"a")) for _ in range(4)]
    server.feed(client.take())
    server.finish(streams[0], 8, "too much")
    assert client.feed(server.take()) == [CallEnded(streams[0], 8, b"")]
    assert client.feed(http2.rst_stream(streams[1], http2.REFUSED_STREAM)) == [CallEnded(streams[1], 14, b"")]
    assert client.feed(http2.goaway(streams[2], http2.NO_ERROR)) == [CallEnded(streams[3], 14, b"")]
    assert client.draining
    assert not client.can_call
    assert client.calls == 1
    client.abandon(streams[2])
    assert (client.calls, client.take()[-4:]) == (0, http2.CANCEL.to_bytes(4, "big"))


def test_a_server_says_how_many_calls_it_takes() -> None:
    client = GrpcClient()
    client.feed(http2.frame(http2.SETTINGS, 0, 0, b"\x00\x03\x00\x00\x00\x01"))
    assert client.can_call
    client.call(HEAD, length_prefixed(b""))
    assert not client.can_call


@given(st.sampled_from([one for one in Datatype if one is not Datatype.BYTES]), st.integers(1, 3), st.integers(1, 5))
def test_made_up_tensors_fit_what_the_server_reads(datatype: Datatype, rows: int, width: int) -> None:
    described = ModelMetadata(
        (TensorMetadata("X", datatype, (-1, width)),), (TensorMetadata("Y", datatype, (-1, width)),)
    )
    asked = synthetic_request("m", described, rows, {}, timeout_us=5)
    reader = HttpReader(1 << 20)
    reader.feed(http_request(asked, "localhost:1"))
    heard = reader.next()
    assert heard is not None
    request = read_request("m", "", heard.body, heard.head.json_length)
    assert request.timeout_ns == 5000
    (given_input,) = request.inputs
    assert given_input.shape == (rows, width)
    assert given_input.raw is not None
    assert from_raw(datatype, given_input.shape, given_input.raw).shape == (rows, width)
    message = TYPES["ModelInferRequest"].FromString(grpc_request(asked))
    assert (message.model_name, list(message.inputs[0].shape)) == ("m", [rows, width])
    assert message.raw_input_contents[0] == bytes(given_input.raw)


def test_a_free_dimension_must_be_chosen() -> None:
    described = ModelMetadata((TensorMetadata("X", Datatype.FP32, (-1, -1, 2)),), ())
    with pytest.raises(ConfigError, match="--shape X:8,2"):
        synthetic_request("m", described, 1, {})
    with pytest.raises(ConfigError):
        synthetic_request("m", described, 1, {"X": (1,)})
    assert synthetic_request("m", described, 3, {"X": (4, 2)}).inputs[0].spec.shape == (3, 4, 2)


def test_metadata_comes_over_grpc_as_over_http() -> None:
    tensor = {"name": "X", "datatype": "BYTES", "shape": [-1, 2]}
    message = TYPES["ModelMetadataResponse"](name="m", inputs=[tensor], outputs=[tensor]).SerializeToString()
    asked = synthetic_request("m", read_metadata(message), 2, {})
    assert asked == InferenceRequest(
        "m", (InputTensor(TensorSpec("X", Datatype.BYTES, (2, 2)), content(Datatype.BYTES, (2, 2))),), ("X",)
    )
