"""Harmful requests are rejected, and every internal error is answered."""

import asyncio
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("google.protobuf")
pytest.importorskip("tritonclient.grpc")
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from cotenant.serve.frontend.admin import AdminService
from cotenant.serve.frontend.connections import ClientLimits
from cotenant.serve.frontend.grpc import GrpcServer
from cotenant.serve.frontend.http import HttpServer
from cotenant.serve.frontend.shared_memory import SharedMemoryRegions
from cotenant.serve.model.tensor import Datatype, TensorSpec
from cotenant.serve.protocol.http2 import frames as http2
from cotenant.serve.protocol.http2.frames import frame
from cotenant.serve.protocol.http2.hpack import HpackDecoder, encode_header
from cotenant.serve.protocol.oip.infer import CheckedRequest, InferError, InferRequest, RegionSlice, RequestInput
from cotenant.serve.protocol.oip.proto import SERVICE
from tests.support.model_servers import Server, identity

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("default")]  # third-party clients and their dependencies
CLIENTS = {"http": triton_http, "grpc": triton_grpc}
SPARSE_BYTES = 16 << 40


@pytest.fixture
def sparse() -> Iterator[str]:
    """Create a large sparse shared memory object."""
    key = f"cotenant-test-{secrets.token_hex(8)}"
    path = Path("/dev/shm") / key
    with path.open("wb") as file:
        os.ftruncate(file.fileno(), SPARSE_BYTES)
    yield key
    path.unlink()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    identity(folder / "wide.onnx", "FP32", ["N", "M"])
    identity(folder / "texts.onnx", "BYTES", ["N", "M"])
    server = Server(folder, "--cores", "1", "--body", "1MiB", "--request-memory", "2MiB")
    yield server
    server.stop()


@pytest.fixture(params=list(CLIENTS))
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    "model, datatype, shape, size, message",
    [
        ("wide", "FP32", [1, 4], SPARSE_BYTES, "takes 16 bytes"),
        ("wide", "FP32", [8, 1 << 36], 1 << 41, "2097152 are the limit"),
        ("texts", "BYTES", [1, 4], SPARSE_BYTES, "1048576 are the limit"),
    ],
)
def test_oversized_shared_memory_range_is_rejected_before_it_is_read(
    server: Server, protocol: str, sparse: str, model: str, datatype: str, shape: list[int], size: int, message: str
) -> None:
    with CLIENTS[protocol].InferenceServerClient(getattr(server, protocol)) as client:
        client.register_system_shared_memory("sparse", sparse, SPARSE_BYTES)
        try:
            tensor = CLIENTS[protocol].InferInput("IN", shape, datatype)
            tensor.set_shared_memory("sparse", size)
            with pytest.raises(InferenceServerException, match=message) as caught:
                client.infer(model, [tensor])
            assert caught.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
        finally:
            client.unregister_system_shared_memory("sparse")


def test_shared_memory_range_of_wrong_size_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    regions = SharedMemoryRegions()
    monkeypatch.setattr(regions, "read", lambda *_: pytest.fail("it was read"))
    tensor = RequestInput("X", "FP32", (2,), location=RegionSlice("r", 0, 12))
    request = InferRequest("m", "", "", (tensor,), ())
    checked = CheckedRequest((RegionSlice("r", 0, 12),), 1, ((2,),))
    with pytest.raises(InferError, match="takes 8 bytes, its range has 12"):
        regions.filled((TensorSpec("X", Datatype.FP32, (2,)),), request, checked)


class RecordingTransport:
    """A transport that keeps the data sent."""

    def __init__(self) -> None:
        self.sent = b""

    def write(self, data: bytes) -> None:
        self.sent += data

    def get_extra_info(self, name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return 0


def _fail(*_: Any) -> Any:
    raise MemoryError("on purpose")


async def _fail_later(**_: Any) -> Any:
    raise MemoryError("on purpose")


FAILING_ADMIN = cast(
    "AdminService", SimpleNamespace(engine=SimpleNamespace(submit=_fail), metadata=_fail, index=_fail_later)
)


async def response_and_errors(protocol: asyncio.Protocol, data: bytes) -> tuple[bytes, list[BaseException]]:
    """Return the response of the client and the report to the operator."""
    errors: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
    transport = RecordingTransport()
    protocol.connection_made(cast("asyncio.Transport", transport))
    protocol.data_received(data)
    for _ in range(5):
        await asyncio.sleep(0)
    return transport.sent, errors


@pytest.mark.parametrize(
    "request_line", [b"POST /v2/models/m/infer", b"GET /v2/models/m", b"POST /v2/repository/index"]
)
def test_internal_error_is_answered_over_http_and_connection_stays_open(request_line: bytes) -> None:
    body = b'{"inputs":[{"name":"X","shape":[1],"datatype":"FP32","data":[1]}]}'
    request = request_line + b" HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    alive = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"

    async def main() -> tuple[bytes, list[BaseException]]:
        return await response_and_errors(HttpServer(FAILING_ADMIN, ClientLimits(), lambda: b"")(), request + alive)

    sent, errors = asyncio.run(main())
    assert sent.startswith(b"HTTP/1.1 500")
    assert b"MemoryError: on purpose" in sent
    assert sent.count(b"HTTP/1.1 200") == 1
    assert [type(error) for error in errors] == [MemoryError]


@pytest.mark.parametrize("method", ["ModelInfer", "ModelMetadata", "RepositoryIndex"])
def test_internal_error_is_answered_over_grpc_and_connection_stays_open(method: str) -> None:
    def call(stream: int, method: str) -> bytes:
        path = encode_header(b":path", f"/{SERVICE}/{method}".encode())
        headers = b"\x83\x86" + path + encode_header(b"content-type", b"application/grpc")
        data = frame(http2.DATA, http2.END_STREAM, stream, bytes(5))
        return frame(http2.HEADERS, http2.END_HEADERS, stream, headers) + data

    async def main() -> tuple[bytes, list[BaseException]]:
        begin = http2.PREFACE + frame(http2.SETTINGS, 0, 0)
        protocol = GrpcServer(FAILING_ADMIN, ClientLimits(1 << 20, 1 << 20, 10))()
        return await response_and_errors(protocol, begin + call(1, method) + call(3, "ServerLive"))

    sent, errors = asyncio.run(main())
    reader = HpackDecoder()
    ends = {
        frame_.stream: dict(reader.decode(frame_.payload))
        for frame_ in http2.FrameReader(preface_seen=True).feed(sent)
        if frame_.kind == http2.HEADERS
    }
    assert (ends[1][b"grpc-status"], ends[3][b"grpc-status"]) == (b"13", b"0")
    assert b"MemoryError: on purpose" in ends[1][b"grpc-message"]
    assert [type(error) for error in errors] == [MemoryError]
