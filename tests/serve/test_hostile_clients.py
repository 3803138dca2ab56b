"""Clients that send what takes long to decode, or open connections that they do not use."""

import asyncio
import contextlib
import gzip
import http.client
import json
import socket
import ssl
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("google.protobuf")
pytest.importorskip("tritonclient.grpc")
import grpc
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from cotenant.serve.frontend import large_requests
from cotenant.serve.frontend.large_requests import MANY_JSON_ELEMENTS, MANY_TEXTS, has_many_texts, take_long, with_texts
from cotenant.serve.frontend.shared_memory import SharedMemoryRegions
from cotenant.serve.model.tensor import Datatype
from cotenant.serve.protocol.compression import Decompression, compress
from cotenant.serve.protocol.http1.request import HttpReader
from cotenant.serve.protocol.oip.infer import InferError, InferRequest, RequestInput
from cotenant.serve.protocol.oip.infer_json import ResponseOutput, write_response
from cotenant.serve.protocol.oip.proto import SERVICE, TYPES
from tests.serve.test_listeners import make_certificate
from tests.support.model_servers import TOKEN, Server, explicit_control, identity

pytestmark = pytest.mark.live

TEXTS = 20_000
CONNECTIONS = 24
CLIENTS = {"http": tritonclient.http, "grpc": tritonclient.grpc}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clients")
    identity(folder / "texts.onnx", "BYTES", ["N", "M"])
    identity(folder / "numbers.onnx", "FP32", ["N", "M"])
    make_certificate(folder)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    server = Server(folder, "--cores", "1")
    yield server
    server.stop()


def texts_in_raw_form(count: int) -> tuple[list[bytes], bytes]:
    texts = [b"x" * (index % 3) for index in range(count)]
    return texts, b"".join(struct.pack("<I", len(text)) + text for text in texts)


@pytest.mark.parametrize("protocol", CLIENTS)
def test_many_strings_round_trip(server: Server, protocol: str) -> None:
    kind: Any = CLIENTS[protocol]
    values = np.array([texts_in_raw_form(TEXTS)[0]], np.object_)
    tensor = kind.InferInput("IN", list(values.shape), "BYTES")
    tensor.set_data_from_numpy(values)
    with kind.InferenceServerClient(getattr(server, protocol)) as client:
        answers = [client.infer("texts", [tensor]).as_numpy("OUT") for _ in range(2)]
        if protocol == "http":
            outputs = [kind.InferRequestedOutput("OUT", binary_data=False)]
            answers.append(client.infer("texts", [tensor], outputs=outputs).as_numpy("OUT"))
    for answer in answers:
        assert [item if isinstance(item, bytes) else item.encode() for item in answer.ravel()] == list(values.ravel())


def many_texts(raw: bytes, count: int) -> InferRequest:
    return InferRequest("texts", "", "", (RequestInput("IN", "BYTES", (1, count), raw),), ())


def test_thread_decodes_many_strings(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[threading.Thread] = []

    def from_raw(*arguments: Any) -> Any:
        used.append(threading.current_thread())
        return np.zeros(3)

    monkeypatch.setattr(large_requests, "from_raw", from_raw)
    texts, raw = texts_in_raw_form(MANY_TEXTS + 1)
    request = many_texts(raw, len(texts))
    assert has_many_texts(request)
    decoded = asyncio.run(with_texts(request, SharedMemoryRegions(), 1 << 30))
    assert decoded.inputs[0].array is not None
    assert threading.main_thread() not in used
    assert len(used) == 1
    assert not has_many_texts(decoded)
    assert not has_many_texts(many_texts(raw[:100], 2))


def test_strings_that_would_exceed_the_memory_are_refused_before_they_are_decoded() -> None:
    count = MANY_TEXTS + 1
    with pytest.raises(InferError, match="--request-memory"):
        asyncio.run(with_texts(many_texts(bytes(4 * count), count), SharedMemoryRegions(), 1 << 16))


@given(st.sampled_from([Datatype.FP32, Datatype.INT64, Datatype.BYTES]), st.integers(1, 2 * MANY_JSON_ELEMENTS))
def test_outputs_encoded_in_pieces_are_the_same(datatype: Datatype, count: int) -> None:
    array = np.arange(count) % 7
    typed = array.astype(np.float32 if datatype is Datatype.FP32 else np.int64)
    if datatype is Datatype.BYTES:
        typed = np.array([str(value).encode() for value in array], np.object_)
    output = ResponseOutput("OUT", datatype, typed.shape, typed, False, None)
    body, json_length = write_response("m", "1", "", [output])
    (answer,) = msgspec.json.decode(body[0])["outputs"]
    expected = [str(value) for value in array] if datatype is Datatype.BYTES else array.tolist()
    assert (json_length, answer["data"]) == (-1, expected)
    limit = MANY_TEXTS if datatype is Datatype.BYTES else MANY_JSON_ELEMENTS
    assert take_long([output]) == (count > limit)


def call(server: Server, method: str, message: bytes) -> bytes:
    with grpc.insecure_channel(server.grpc) as channel:
        answer: bytes = channel.unary_unary(f"/{SERVICE}/{method}")(message, timeout=60)
        return answer


def children_of(server: Server) -> list[str]:
    tasks = Path(f"/proc/{server.process.pid}/task").iterdir()
    return [pid for task in tasks for pid in (task / "children").read_text().split()]


@pytest.mark.parametrize("depth", [2_000, 300_000])
@pytest.mark.parametrize("begin, end", [('"data":', "}]}"), ('"parameters":{"a":', '},"data":[1]}]}')])
def test_deeply_nested_json_is_refused(server: Server, begin: str, end: str, depth: int) -> None:
    tensor = '{"inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32",'
    for nested in ("[" * depth + "]" * depth, "[" * depth, '{"a":' * depth + "1" + "}" * depth):
        body = f"{tensor}{begin}{nested}{end}".encode()
        request = urllib.request.Request(f"http://{server.http}/v2/models/numbers/infer", body)
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(request, timeout=60)
        assert (refusal.value.code, b"not a valid inference request" in refusal.value.read()) == (400, True)
    with urllib.request.urlopen(f"http://{server.http}/v2/health/ready", timeout=60) as answer:
        assert answer.status == 200


def test_large_message_is_decoded_in_another_process(server: Server) -> None:
    request = TYPES["ModelInferRequest"](model_name="numbers", id="a")
    tensor = request.inputs.add(name="IN", datatype="FP32", shape=[1, 50_000])
    tensor.contents.fp32_contents.extend([0.5] * 50_000)
    answer = TYPES["ModelInferResponse"].FromString(call(server, "ModelInfer", request.SerializeToString()))
    assert (answer.id, answer.raw_output_contents[0]) == ("a", struct.pack("<f", 0.5) * 50_000)
    assert children_of(server)
    for bomb in (b"\x2a\x00" * 300_000, b"\x22\x00" * 300_000, b"\xff" * 100_000):
        with pytest.raises(grpc.RpcError) as caught:
            call(server, "ModelInfer", bomb)
        assert caught.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND), bomb[:2]


def test_requests_of_a_stream_keep_their_order_around_a_large_one(server: Server) -> None:
    sizes = [4, 60_000, 5, 50_000, 6]

    def requests() -> Iterator[bytes]:
        for size in sizes:
            request = TYPES["ModelInferRequest"](model_name="numbers", id=str(size))
            request.inputs.add(name="IN", datatype="FP32", shape=[1, size]).contents.fp32_contents.extend([1.0] * size)
            yield request.SerializeToString()

    with grpc.insecure_channel(server.grpc) as channel:
        answers = list(channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")(requests(), timeout=60))
    kind = TYPES["ModelStreamInferResponse"]
    assert sorted(int(kind.FromString(answer).infer_response.id) for answer in answers) == sorted(sizes)


def test_requests_other_than_inference_are_small(server: Server) -> None:
    connection = http.client.HTTPConnection(server.http, timeout=60)
    body = json.dumps({"ready": [0] * 100_000})
    connection.request("POST", "/v2/repository/index", body)
    answer = connection.getresponse()
    assert (answer.status, "limit of this path" in answer.read().decode()) == (400, True)
    connection.close()
    with pytest.raises(grpc.RpcError) as caught:
        call(server, "ServerReady", b"\x2a\x00" * 100_000)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_classification_of_a_large_output_is_refused(server: Server) -> None:
    values = np.zeros((1, 1 << 15), np.float32)
    tensor = tritonclient.http.InferInput("IN", list(values.shape), "FP32")
    tensor.set_data_from_numpy(values)
    outputs = [tritonclient.http.InferRequestedOutput("OUT", class_count=1 << 15)]
    with (
        tritonclient.http.InferenceServerClient(server.http) as client,
        pytest.raises(InferenceServerException, match="are the limit"),
    ):
        client.infer("numbers", [tensor], outputs=outputs)


def decompressed(compressed: bytes, encoding: str, limit: int) -> bytearray:
    decompression = Decompression(compressed, encoding, limit)
    while not decompression.step(1 << 20):
        assert len(decompression.result) <= limit
    return decompression.result


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("size", [0, 1, 3 << 20])
def test_data_after_the_end_of_compressed_data_is_refused(encoding: str, size: int) -> None:
    plain = np.random.default_rng(1).bytes(size)
    compressed = compress(plain, encoding)
    assert decompressed(compressed, encoding, size) == plain
    with pytest.raises(ValueError, match="after its end"):
        decompressed(compressed + b"x", encoding, size)


def test_zip_bomb_is_cut_off_at_the_limit_of_bodies() -> None:
    with pytest.raises(ValueError, match="more than the limit"):
        decompressed(gzip.compress(bytes(64 << 20)), "gzip", 1 << 20)


def test_body_of_single_bytes_is_not_kept_as_single_objects() -> None:
    reader = HttpReader(1 << 20)
    body = bytes(range(256)) * 64
    reader.feed(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body))
    for byte in body[:-1]:
        reader.feed(bytes((byte,)))
    assert len(reader._parts) == 1
    reader.feed(body[-1:])
    request = reader.next()
    assert request is not None
    assert request.body == body


def test_connections_without_a_handshake_lock_no_client_out(folder: Path) -> None:
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    limits = ("--connections", str(CONNECTIONS), "--client-connections", str(CONNECTIONS))
    server = Server(folder, "--cores", "1", "--tls-cert", cert, "--tls-key", key, *limits, *explicit_control(folder))
    context = ssl.create_default_context(cafile=cert)
    addresses = (server.http, server.metrics, server.admin)
    with contextlib.ExitStack() as stack:
        for address in (server.http, server.admin):
            host, port = address.split(":")
            for number in range(150):
                silent = stack.enter_context(socket.create_connection((host, int(port)), 60))
                if number % 2:
                    with contextlib.suppress(OSError):  # the server may have closed it already
                        silent.sendall(b"\x16\x03\x01\x00")  # the beginning of a handshake
        for address in addresses:
            for _ in range(3):
                connection = http.client.HTTPSConnection(address, timeout=60, context=context)
                connection.request("GET", "/v2/health/ready", headers={"Authorization": f"Bearer {TOKEN}"})
                assert connection.getresponse().status == 200
                connection.close()
        assert len(list(Path(f"/proc/{server.process.pid}/fd").iterdir())) < CONNECTIONS + 64 + 64
    with pytest.raises(OSError, match=r"."):
        urllib.request.urlopen(f"http://{server.http}/v2", timeout=60)
    server.stop()


def test_silent_connections_to_the_admin_listener_lock_no_operator_out(folder: Path) -> None:
    server = Server(folder, "--cores", "1", *explicit_control(folder))
    host, port = server.admin.split(":")
    with contextlib.ExitStack() as stack:
        for _ in range(200):  # of which 64 are allowed
            stack.enter_context(socket.create_connection((host, int(port)), 60))
        connection = http.client.HTTPConnection(server.admin, timeout=60)
        connection.request("GET", "/v2", headers={"Authorization": f"Bearer {TOKEN}"})
        assert connection.getresponse().status == 200
        connection.close()
    server.stop()
