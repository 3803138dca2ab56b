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


def received(server: Server, protocol: str, ask: Callable[..., Awaitable[Any]]) -> Any:
    """Return what a client receives, as a tree; `ask` gets the client and its arguments for trees."""

    async def hear() -> Any:
        async with CLIENTS[protocol].InferenceServerClient(getattr(server, protocol)) as client:
            return await ask(client, {} if protocol == "http" else {"as_json": True})

    return asyncio.run(hear())


def test_metadata_is_read(server: Server, protocol: str) -> None:
    found = received(server, protocol, lambda client, words: client.get_server_metadata(**words))
    assert found["name"] == "cotenant"
    found = received(server, protocol, lambda client, words: client.get_model_metadata("both", **words))
    assert [one["name"] for one in found["inputs"]] == ["A", "B"]


def test_a_config_is_read(server: Server, protocol: str) -> None:
    found = received(server, protocol, lambda client, words: client.get_model_config("both", **words))
    assert found.get("config", found)["max_batch_size"] == 8


def test_statistics_are_read(server: Server, protocol: str) -> None:
    found = received(server, protocol, lambda client, words: client.get_inference_statistics(**words))
    assert len(found["model_stats"]) == 9


def test_the_index_is_read(server: Server, protocol: str) -> None:
    found = received(server, protocol, lambda client, words: client.get_model_repository_index(**words))
    assert len(found if protocol == "http" else found["models"]) == 9


def test_answers_of_inference_are_packed_where_they_may_be(server: Server) -> None:
    async def ask(client: Any, words: dict[str, Any]) -> Any:
        del words
        tensor = triton_http_aio.InferInput("IN", [8, 4], "FP32")
        tensor.set_data_from_numpy(np.zeros((8, 4), np.float32), binary_data=False)
        return await client.infer("identity_0", [tensor], response_compression_algorithm="gzip")

    assert received(server, "http", ask).as_numpy("OUT").tolist() == np.zeros((8, 4)).tolist()
