"""Is a request that would harm the server refused, and is whatever it fails at answered?"""

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

from cotenant.domain.tensor import Datatype, TensorSpec
from cotenant.format import http2
from cotenant.format.hpack import HpackDecoder, encode_header
from cotenant.format.http2 import frame
from cotenant.format.infer import Checked, GivenInput, InferError, InferRequest, Place
from cotenant.format.proto import SERVICE
from cotenant.live.serve.grpc import GrpcServing
from cotenant.live.serve.http import HttpServing, Limits
from cotenant.live.serve.regions import Regions
from cotenant.live.serve.site import Site
from tests.live.servers import Server, identity

pytestmark = pytest.mark.filterwarnings("default")  # of NVIDIA's clients and what they stand on
CLIENTS = {"http": triton_http, "grpc": triton_grpc}
SPARSE_BYTES = 16 << 40


@pytest.fixture
def sparse() -> Iterator[str]:
    """A shared-memory object that is very long and has nothing in it."""
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
    server = Server(folder, "--cores", "1", "--body", "1MiB", "--memory", "2MiB")
    yield server
    server.stop()


@pytest.fixture(params=list(CLIENTS))
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    "model, datatype, shape, size, said",
    [
        ("wide", "FP32", [1, 4], SPARSE_BYTES, "takes 16 bytes"),
        ("wide", "FP32", [8, 1 << 36], 1 << 41, "2097152 are the limit"),
        ("texts", "BYTES", [1, 4], SPARSE_BYTES, "1048576 are the limit"),
    ],
)
def test_the_size_in_shared_memory_is_compared_before_it_is_read(
    server: Server, protocol: str, sparse: str, model: str, datatype: str, shape: list[int], size: int, said: str
) -> None:
    with CLIENTS[protocol].InferenceServerClient(getattr(server, protocol)) as client:
        client.register_system_shared_memory("sparse", sparse, SPARSE_BYTES)
        try:
            tensor = CLIENTS[protocol].InferInput("IN", shape, datatype)
            tensor.set_shared_memory("sparse", size)
            with pytest.raises(InferenceServerException, match=said) as caught:
                client.infer(model, [tensor])
            assert caught.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
        finally:
            client.unregister_system_shared_memory("sparse")


def test_nothing_is_read_that_has_another_size(monkeypatch: pytest.MonkeyPatch) -> None:
    regions = Regions()
    monkeypatch.setattr(regions, "read", lambda *_: pytest.fail("it was read"))
    given = GivenInput("X", "FP32", (2,), place=Place("r", 0, 12))
    request = InferRequest("m", "", "", (given,), ())
    checked = Checked((Place("r", 0, 12),), 1, ((2,),))
    with pytest.raises(InferError, match="takes 8 bytes, its place has 12"):
        regions.filled((TensorSpec("X", Datatype.FP32, (2,)),), request, checked)


class Line:
    """A transport that keeps what is sent."""

    def __init__(self) -> None:
        self.sent = b""

    def write(self, data: bytes) -> None:
        self.sent += data

    def get_write_buffer_size(self) -> int:
        return 0


def _fail(*_: Any) -> Any:
    raise MemoryError("on purpose")


async def _fail_later(**_: Any) -> Any:
    raise MemoryError("on purpose")


BROKEN = cast("Site", SimpleNamespace(engine=SimpleNamespace(submit=_fail), metadata=_fail, index=_fail_later))


async def heard(protocol: asyncio.Protocol, said: bytes) -> tuple[bytes, list[BaseException]]:
    """What a client is answered, and what the operator is told."""
    told: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    line = Line()
    protocol.connection_made(cast("asyncio.Transport", line))
    protocol.data_received(said)
    for _ in range(5):
        await asyncio.sleep(0)
    return line.sent, told


@pytest.mark.parametrize("asked", [b"POST /v2/models/m/infer", b"GET /v2/models/m", b"POST /v2/repository/index"])
def test_a_fault_is_answered_over_http_and_the_connection_goes_on(asked: bytes) -> None:
    body = b'{"inputs":[{"name":"X","shape":[1],"datatype":"FP32","data":[1]}]}'
    request = asked + b" HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    alive = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"

    async def main() -> tuple[bytes, list[BaseException]]:
        return await heard(HttpServing(BROKEN, Limits(), lambda: b"")(), request + alive)

    sent, told = asyncio.run(main())
    assert sent.startswith(b"HTTP/1.1 500")
    assert b"MemoryError: on purpose" in sent
    assert sent.count(b"HTTP/1.1 200") == 1
    assert [type(one) for one in told] == [MemoryError]


@pytest.mark.parametrize("method", ["ModelInfer", "ModelMetadata", "RepositoryIndex"])
def test_a_fault_is_answered_over_grpc_and_the_connection_goes_on(method: str) -> None:
    def call(stream: int, method: str) -> bytes:
        path = encode_header(b":path", f"/{SERVICE}/{method}".encode())
        headers = b"\x83\x86" + path + encode_header(b"content-type", b"application/grpc")
        data = frame(http2.DATA, http2.END_STREAM, stream, bytes(5))
        return frame(http2.HEADERS, http2.END_HEADERS, stream, headers) + data

    async def main() -> tuple[bytes, list[BaseException]]:
        begin = http2.PREFACE + frame(http2.SETTINGS, 0, 0)
        protocol = GrpcServing(BROKEN, 1 << 20, 1 << 20, 10)()
        return await heard(protocol, begin + call(1, method) + call(3, "ServerLive"))

    sent, told = asyncio.run(main())
    reader = HpackDecoder()
    ends = {
        one.stream: dict(reader.decode(one.payload))
        for one in http2.FrameReader(greeted=True).feed(sent)
        if one.kind == http2.HEADERS
    }
    assert (ends[1][b"grpc-status"], ends[3][b"grpc-status"]) == (b"13", b"0")
    assert b"MemoryError: on purpose" in ends[1][b"grpc-message"]
    assert [type(one) for one in told] == [MemoryError]
