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


def split_at(text: bytes, cuts: list[int]) -> list[bytes]:
    offsets = sorted({0, len(text), *(offset % len(text) for offset in cuts)})
    return [text[begin:end] for begin, end in itertools.pairwise(offsets)]


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[offset : offset + size] for offset in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\nx-trailer: 1\r\n\r\n"


@given(st.binary(max_size=300), st.integers(0, 40), st.lists(st.integers(0, 2000), max_size=8))
def test_http_response_does_not_depend_on_how_bytes_are_split(body: bytes, size: int, cuts: list[int]) -> None:
    if size:
        text = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(body, size)
    else:
        text = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    reader = ResponseReader(keep=True)
    for _ in range(2):  # consecutive responses on one connection
        responses = [answer for part in split_at(text, cuts) if (answer := reader.feed(part))]
        assert [(head.status, head.keep_alive, received) for head, received in responses] == [(200, True, body)]


@pytest.mark.parametrize(
    "text, status, keep_alive",
    [
        (b"HTTP/1.1 204 No Content\r\ncontent-length: 7\r\n\r\n", 204, True),
        (b"HTTP/1.1 503 no\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 503, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", 200, False),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 Later\r\nContent-Length: 0\r\n\r\n", 429, True),
    ],
)
def test_response_head_determines_status_and_keep_alive(text: bytes, status: int, keep_alive: bool) -> None:
    response = ResponseReader().feed(text)
    assert response is not None
    assert (response[0].status, response[0].keep_alive) == (status, keep_alive)


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
def test_invalid_http_response_is_rejected(text: bytes) -> None:
    with pytest.raises(ResponseError):
        ResponseReader().feed(text)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_parsed_or_rejected(noise: bytes) -> None:
    for feed in (ResponseReader().feed, GrpcClient().feed):
        try:
            feed(noise)
        except (ResponseError, http2.Http2Error):
            continue


@settings(max_examples=50)
@given(st.lists(st.integers(0, 60_000), min_size=1, max_size=8), st.lists(st.integers(0, 10**6), max_size=12))
def test_every_call_is_answered_once_under_flow_control(sizes: list[int], cuts: list[int]) -> None:
    """Client against server, both without I/O: messages arrive complete, and every call ends with its own response."""
    server, client = GrpcConnection(1 << 20), GrpcClient(keep=True)
    messages = [bytes([index]) * size for index, size in enumerate(sizes)]
    streams = [client.call(HEAD, length_prefixed(message)) for message in messages]
    received: dict[int, bytes] = {}
    ended: list[CallEnded] = []
    for _ in range(100):
        request_data = client.take()
        for part in split_at(request_data, cuts) if request_data else ():
            for event in server.feed(part):
                if isinstance(event, MessageReceived):
                    received[event.stream] = event.message
                elif isinstance(event, HalfClosed):
                    server.respond(event.stream, received[event.stream])
        response_data = server.take()
        for part in split_at(response_data, cuts) if response_data else ():
            ended += client.feed(part)
    assert received == dict(zip(streams, messages, strict=True))
    assert sorted(ended) == [CallEnded(*fields) for fields in zip(streams, [0] * len(sizes), messages, strict=True)]
    assert client.calls == 0


def test_client_reports_rejected_reset_and_unprocessed_calls() -> None:
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


def test_client_respects_the_concurrent_stream_limit() -> None:
    client = GrpcClient()
    client.feed(http2.frame(http2.SETTINGS, 0, 0, b"\x00\x03\x00\x00\x00\x01"))
    assert client.can_call
    client.call(HEAD, length_prefixed(b""))
    assert not client.can_call


@given(
    st.sampled_from([datatype for datatype in Datatype if datatype is not Datatype.BYTES]),
    st.integers(1, 3),
    st.integers(1, 5),
)
def test_synthetic_request_is_valid_for_the_server(datatype: Datatype, rows: int, width: int) -> None:
    metadata = ModelMetadata(
        (TensorMetadata("X", datatype, (-1, width)),), (TensorMetadata("Y", datatype, (-1, width)),)
    )
    request_data = synthetic_request("m", metadata, rows, {}, timeout_us=5)
    reader = HttpReader(1 << 20)
    reader.feed(http_request(request_data, "localhost:1"))
    http_message = reader.next()
    assert http_message is not None
    request = read_request("m", "", http_message.body, http_message.head.json_length)
    assert request.timeout_ns == 5000
    (given_input,) = request.inputs
    assert given_input.shape == (rows, width)
    assert given_input.raw is not None
    assert from_raw(datatype, given_input.shape, given_input.raw).shape == (rows, width)
    message = TYPES["ModelInferRequest"].FromString(grpc_request(request_data))
    assert (message.model_name, list(message.inputs[0].shape)) == ("m", [rows, width])
    assert message.raw_input_contents[0] == bytes(given_input.raw)


def test_free_dimension_requires_a_shape_option() -> None:
    metadata = ModelMetadata((TensorMetadata("X", Datatype.FP32, (-1, -1, 2)),), ())
    with pytest.raises(ConfigError, match="--shape X:8,2"):
        synthetic_request("m", metadata, 1, {})
    with pytest.raises(ConfigError):
        synthetic_request("m", metadata, 1, {"X": (1,)})
    assert synthetic_request("m", metadata, 3, {"X": (4, 2)}).inputs[0].spec.shape == (3, 4, 2)


def test_request_is_built_from_grpc_metadata() -> None:
    tensor = {"name": "X", "datatype": "BYTES", "shape": [-1, 2]}
    message = TYPES["ModelMetadataResponse"](name="m", inputs=[tensor], outputs=[tensor]).SerializeToString()
    request = synthetic_request("m", read_metadata(message), 2, {})
    assert request == InferenceRequest(
        "m", (InputTensor(TensorSpec("X", Datatype.BYTES, (2, 2)), content(Datatype.BYTES, (2, 2))),), ("X",)
    )
