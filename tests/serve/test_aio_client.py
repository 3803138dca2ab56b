"""NVIDIA's asyncio clients read all responses other than inference, although they decompress less than the others."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("google.protobuf")
pytest.importorskip("tritonclient.grpc")
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http.aio as triton_http_aio

from tests.support.model_servers import Server, add_and_subtract, identity

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("default")]  # third-party clients and their dependencies
CLIENTS: dict[str, Any] = {"http": triton_http_aio, "grpc": triton_grpc_aio}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    add_and_subtract(folder / "both.onnx")
    for number in range(8):  # makes the index longer than the limit below which responses are not compressed
        identity(folder / f"identity_{number}.onnx", "FP32")
    server = Server(folder, "--cores", "1")
    yield server
    server.stop()


@pytest.fixture(params=list(CLIENTS))
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def received(server: Server, protocol: str, send: Callable[..., Awaitable[Any]]) -> Any:
    """Return the response as a tree; `send` gets the client and the options that make it return trees."""

    async def request() -> Any:
        async with CLIENTS[protocol].InferenceServerClient(getattr(server, protocol)) as client:
            return await send(client, {} if protocol == "http" else {"as_json": True})

    return asyncio.run(request())


def test_asyncio_client_reads_metadata(server: Server, protocol: str) -> None:
    metadata = received(server, protocol, lambda client, options: client.get_server_metadata(**options))
    assert metadata["name"] == "cotenant"
    metadata = received(server, protocol, lambda client, options: client.get_model_metadata("both", **options))
    assert [tensor["name"] for tensor in metadata["inputs"]] == ["A", "B"]


def test_asyncio_client_reads_model_config(server: Server, protocol: str) -> None:
    config = received(server, protocol, lambda client, options: client.get_model_config("both", **options))
    assert config.get("config", config)["max_batch_size"] == 8


def test_asyncio_client_reads_statistics(server: Server, protocol: str) -> None:
    statistics = received(server, protocol, lambda client, options: client.get_inference_statistics(**options))
    assert len(statistics["model_stats"]) == 9


def test_asyncio_client_reads_repository_index(server: Server, protocol: str) -> None:
    index = received(server, protocol, lambda client, options: client.get_model_repository_index(**options))
    assert len(index if protocol == "http" else index["models"]) == 9


def test_inference_response_is_compressed_on_request(server: Server) -> None:
    async def infer(client: Any, options: dict[str, Any]) -> Any:
        del options
        tensor = triton_http_aio.InferInput("IN", [8, 4], "FP32")
        tensor.set_data_from_numpy(np.zeros((8, 4), np.float32), binary_data=False)
        return await client.infer("identity_0", [tensor], response_compression_algorithm="gzip")

    assert received(server, "http", infer).as_numpy("OUT").tolist() == np.zeros((8, 4)).tolist()
