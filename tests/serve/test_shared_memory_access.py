"""Only clients on this machine use its shared memory."""

import asyncio
import json
import struct
from collections.abc import Iterator
from typing import Any, cast

import pytest

pytest.importorskip("google.protobuf")
from cotenant.serve.frontend.access import Access
from cotenant.serve.frontend.admin import AdminService
from cotenant.serve.frontend.connections import ClientLimits, is_local
from cotenant.serve.frontend.grpc import GrpcServer
from cotenant.serve.frontend.http import HttpServer
from cotenant.serve.frontend.large_requests import MANY_TEXTS
from cotenant.serve.protocol.http2 import frames as http2
from cotenant.serve.protocol.http2.frames import frame
from cotenant.serve.protocol.http2.hpack import encode_header
from cotenant.serve.protocol.oip.infer import InferError, InferRequest
from cotenant.serve.protocol.oip.proto import SERVICE, TYPES

LIMITS = ClientLimits(1 << 20, 1 << 20, 10)
LOCAL, REMOTE = ("127.0.0.1", 5), ("10.0.0.9", 5)


class FakeTransport:
    """A transport of a connection between two addresses."""

    def __init__(self, peer: Any, own: Any = ("10.0.0.1", 8000)) -> None:
        self.sent = b""
        self._addresses = {"peername": peer, "sockname": own}

    def get_extra_info(self, name: str) -> Any:
        return self._addresses[name]

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        pass


class FakeAdmin:
    """Stands for the models and the shared memory of a server; counts what reaches them."""

    def __init__(self) -> None:
        self.reached = 0
        self.engine = self.regions = self

    def submit(self, request: InferRequest, *arguments: Any) -> int:
        del request, arguments
        self.reached += 1
        raise InferError("reached")

    def register(self, *arguments: Any) -> None:
        del arguments
        self.reached += 1

    def read_texts(self, *arguments: Any) -> bytes:
        del arguments
        self.reached += 1
        return b""

    def status(self, name: str) -> dict[str, Any]:
        del name
        self.reached += 1
        return {}


def http_requests() -> Iterator[bytes]:
    place = {"shared_memory_region": "r", "shared_memory_byte_size": 8 * MANY_TEXTS}
    few = {"name": "X", "datatype": "FP32", "shape": [1], "parameters": place}
    many = {"name": "X", "datatype": "BYTES", "shape": [MANY_TEXTS + 1], "parameters": place}
    plain = {"name": "X", "datatype": "FP32", "shape": [1], "data": [1.0]}
    output = {"name": "Y", "parameters": place}
    yield request("v2/models/m/infer", {"inputs": [few]})
    yield request("v2/models/m/infer", {"inputs": [many]})
    yield request("v2/models/m/infer", {"inputs": [plain], "outputs": [output]})
    yield request("v2/systemsharedmemory/region/r/register", {"key": "/k", "offset": 0, "byte_size": 4})
    yield b"GET /v2/systemsharedmemory/status HTTP/1.1\r\nHost: a\r\n\r\n"


def request(path: str, tree: Any) -> bytes:
    body = json.dumps(tree).encode()
    return f"POST /{path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def grpc_requests() -> Iterator[tuple[str, bytes]]:
    for datatype, count in (("FP32", 1), ("BYTES", MANY_TEXTS + 1)):
        message = TYPES["ModelInferRequest"](model_name="m")
        tensor = message.inputs.add(name="X", datatype=datatype, shape=[count])
        tensor.parameters["shared_memory_region"].string_param = "r"
        tensor.parameters["shared_memory_byte_size"].int64_param = 8 * MANY_TEXTS
        yield "ModelInfer", message.SerializeToString(deterministic=True)
        yield "ModelStreamInfer", message.SerializeToString(deterministic=True)
    yield "SystemSharedMemoryStatus", b""


def sent_to(peer: Any, server: Any, data: bytes) -> bytes:
    async def main() -> bytes:
        transport = FakeTransport(peer)
        connection = server()
        connection.connection_made(cast("asyncio.Transport", transport))
        connection.data_received(data)
        while server.tasks:
            await asyncio.wait(set(server.tasks), timeout=60)
        return transport.sent

    return asyncio.run(main())


@pytest.mark.parametrize("data", list(http_requests()))
def test_http_client_of_another_machine_uses_no_shared_memory(data: bytes) -> None:
    for peer, access, is_allowed in ((LOCAL, Access(), True), (REMOTE, Access(), False), (REMOTE, ADMIN, True)):
        admin = FakeAdmin()
        sent = sent_to(peer, HttpServer(cast("AdminService", admin), LIMITS, lambda: b"", access=access), data)
        assert (admin.reached > 0, b" 403 " in sent) == (is_allowed, not is_allowed), sent


@pytest.mark.parametrize("method, message", list(grpc_requests()))
def test_grpc_client_of_another_machine_uses_no_shared_memory(method: str, message: bytes) -> None:
    path = encode_header(b":path", f"/{SERVICE}/{method}".encode())
    headers = b"\x83\x86" + path + encode_header(b"content-type", b"application/grpc")
    call = frame(http2.HEADERS, http2.END_HEADERS, 1, headers)
    call += frame(http2.DATA, http2.END_STREAM, 1, struct.pack(">BI", 0, len(message)) + message)
    data = http2.PREFACE + frame(http2.SETTINGS, 0, 0) + call
    for peer, access, is_allowed in ((LOCAL, Access(), True), (REMOTE, Access(), False), (REMOTE, ADMIN, True)):
        admin = FakeAdmin()
        sent = sent_to(peer, GrpcServer(cast("AdminService", admin), LIMITS, access=access), data)
        assert (admin.reached > 0, b"on this machine" in sent) == (is_allowed, not is_allowed), sent


ADMIN = Access(may_control=True)


@pytest.mark.parametrize(
    "peer, own, expected",
    [
        (("127.0.0.1", 1), ("127.0.0.1", 2), True),
        (("127.8.9.1", 1), ("10.0.0.1", 2), True),
        (("::1", 1, 0, 0), ("::1", 2, 0, 0), True),
        (("::ffff:127.0.0.1", 1, 0, 0), ("::", 2, 0, 0), True),
        (("10.0.0.1", 1), ("10.0.0.1", 2), True),
        (("10.0.0.2", 1), ("10.0.0.1", 2), False),
        (("::ffff:10.0.0.2", 1, 0, 0), ("::", 2, 0, 0), False),
        ("", "/run/socket", True),
    ],
)
def test_clients_on_this_machine_are_recognised(peer: Any, own: Any, expected: bool) -> None:
    assert is_local(cast("asyncio.BaseTransport", FakeTransport(peer, own))) == expected
