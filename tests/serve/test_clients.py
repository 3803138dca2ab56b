"""NVIDIA's unmodified clients against `cotenant serve`."""

import asyncio
import contextlib
import json
import os
import queue
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("google.protobuf")
pytest.importorskip("tritonclient.grpc")
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_http_aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.support.model_servers import HELD, ONNX_TYPES, Server, make_models

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("default")]  # third-party clients and their dependencies
CLIENTS = {"http": triton_http, "grpc": triton_grpc}
ARRAYS = {
    "BOOL": np.array([[True, False, True, True]]),
    "BYTES": np.array([[b"", "\u00fcber".encode(), b"a" * 300, b"x"]], np.object_),
    "BF16": np.array([[0.5, -2.0, 3.0, 0.0]], ml_dtypes.bfloat16),
    **{
        name: np.arange(4).reshape(1, 4).astype(kind)
        for name, kind in (
            *(("UINT8", "u1"), ("UINT16", "u2"), ("UINT32", "u4"), ("UINT64", "u8")),
            *(("INT8", "i1"), ("INT16", "i2"), ("INT32", "i4"), ("INT64", "i8")),
            *(("FP16", "f2"), ("FP32", "f4"), ("FP64", "f8")),
        )
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    make_models(folder)
    server = Server(folder, "--cores", "1")
    yield server
    server.stop()


@pytest.fixture(params=list(CLIENTS))
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(server: Server, protocol: str) -> Iterator[Any]:
    client = CLIENTS[protocol].InferenceServerClient(getattr(server, protocol))
    yield client
    client.close()


def given(protocol: str, name: str, array: np.ndarray, datatype: str = "") -> Any:
    tensor = CLIENTS[protocol].InferInput(name, list(array.shape), datatype or np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array)
    return tensor


@pytest.mark.parametrize("datatype", ONNX_TYPES)
def test_every_datatype_comes_back(client: Any, protocol: str, datatype: str) -> None:
    array = ARRAYS[datatype]
    answer = client.infer(f"id_{datatype.lower()}", [given(protocol, "IN", array, datatype)])
    np.testing.assert_array_equal(answer.as_numpy("OUT"), array)


@pytest.mark.parametrize("datatype", [name for name in ONNX_TYPES if name not in ("FP16", "BF16")])
def test_datatypes_come_back_as_json(server: Server, datatype: str) -> None:
    array = ARRAYS[datatype]
    with triton_http.InferenceServerClient(server.http) as client:
        tensor = triton_http.InferInput("IN", [1, 4], datatype)
        tensor.set_data_from_numpy(array, binary_data=False)
        wanted = [triton_http.InferRequestedOutput("OUT", binary_data=False)]
        answer = client.infer(f"id_{datatype.lower()}", [tensor], outputs=wanted)
        found = answer.get_output("OUT")["data"]
    plain = [one.decode() for one in array.ravel()] if datatype == "BYTES" else array.ravel().tolist()
    assert found == plain


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_shapes_of_a_batch_are_kept(client: Any, protocol: str, rows: int) -> None:
    a = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    wanted = [CLIENTS[protocol].InferRequestedOutput("DIFFERENCE")]
    answer = client.infer(
        "both", [given(protocol, "B", a * 2), given(protocol, "A", a)], outputs=wanted, request_id="7"
    )
    np.testing.assert_array_equal(answer.as_numpy("DIFFERENCE"), -a)
    assert answer.as_numpy("SUM") is None
    response = answer.get_response()
    assert (response["id"] if protocol == "http" else response.id) == "7"


@pytest.mark.parametrize(
    "name, array, said",
    [
        ("IN", np.zeros((1, 5), np.float32), ["'IN'", "[1, 5]", "[-1, 4]"]),
        ("IN", np.zeros((1, 4), np.int32), ["'IN'", "INT32", "FP32"]),
        ("OTHER", np.zeros((1, 4), np.float32), ["'IN'", "missing"]),
        ("IN", np.zeros((9, 4), np.float32), ["'IN'", "9 rows", "1 to 8"]),
    ],
)
def test_errors_name_the_tensor_and_what_was_expected(
    client: Any, protocol: str, name: str, array: np.ndarray, said: list[str]
) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer("id_fp32", [given(protocol, name, array)])
    for word in said:
        assert word in caught.value.message()
    assert caught.value.status() == {"http": "400", "grpc": "StatusCode.INVALID_ARGUMENT"}[protocol]


def test_a_model_that_fails_says_so(client: Any, protocol: str) -> None:
    with pytest.raises(InferenceServerException, match="on purpose") as caught:
        client.infer("fails", [given(protocol, "X", np.zeros(1, np.float32))])
    assert caught.value.status() == {"http": "500", "grpc": "StatusCode.INTERNAL"}[protocol]


def test_a_model_that_is_not_there(client: Any, protocol: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer("nobody", [given(protocol, "X", np.zeros(1, np.float32))])
    assert caught.value.status() == {"http": "404", "grpc": "StatusCode.NOT_FOUND"}[protocol]
    assert not client.is_model_ready("nobody")


def test_what_a_server_and_its_models_are(client: Any, protocol: str) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("both")
    assert client.is_model_ready("both", "1")
    assert not client.is_model_ready("both", "2")
    as_json = {} if protocol == "http" else {"as_json": True}
    assert client.get_server_metadata(**as_json)["name"] == "cotenant"
    metadata = client.get_model_metadata("both", **as_json)
    assert [one["name"] for one in metadata["inputs"]] == ["A", "B"]
    assert [int(one) for one in metadata["inputs"][0]["shape"]] == [-1, 3]
    config = client.get_model_config("both", **as_json)
    config = config.get("config", config)
    assert config["max_batch_size"] == 8
    assert [int(one) for one in config["input"][0]["dims"]] == [3]


def test_statistics_count_what_was_done(client: Any, protocol: str) -> None:
    as_json = {} if protocol == "http" else {"as_json": True}

    def count() -> int:
        (found,) = client.get_inference_statistics("id_int64", **as_json)["model_stats"]
        return int(found.get("inference_count", 0))

    before = count()
    client.infer("id_int64", [given(protocol, "IN", np.zeros((3, 4), np.int64))])
    assert count() == before + 3


def test_a_broken_model_is_refused_and_the_others_go_on(client: Any, protocol: str, server: Server) -> None:
    assert "broken" not in server.models
    index = client.get_model_repository_index(**({} if protocol == "http" else {"as_json": True}))
    states = {one["name"]: one for one in (index if protocol == "http" else index["models"])}
    assert states["both"]["state"] == "READY"
    assert states["broken"]["state"] == "UNAVAILABLE"
    assert "broken.onnx" in states["broken"]["reason"]
    with pytest.raises(InferenceServerException, match=r"broken\.onnx"):
        client.load_model("broken")


def test_a_model_is_unloaded_and_loaded_again(client: Any, protocol: str) -> None:
    name = "id_uint8"
    client.unload_model(name)
    assert not client.is_model_ready(name)
    with pytest.raises(InferenceServerException):
        client.infer(name, [given(protocol, "IN", ARRAYS["UINT8"])])
    client.load_model(name)
    assert client.is_model_ready(name)
    client.infer(name, [given(protocol, "IN", ARRAYS["UINT8"])])
    with pytest.raises(InferenceServerException, match="no such model"):
        client.load_model("nobody")


def test_loading_again_loses_no_request(server: Server, protocol: str) -> None:
    with CLIENTS[protocol].InferenceServerClient(server.grpc if protocol == "grpc" else server.http) as client:
        tensor = given(protocol, "SECONDS", np.full((1, 1), 0.05, np.float32))
        answers: queue.Queue[Any] = queue.Queue()
        asked = None
        if protocol == "http":
            asked = client.async_infer("slow", [tensor])
        else:
            client.async_infer("slow", [tensor], callback=lambda result, error: answers.put(error or result))
        client.load_model("slow")
        found = answers.get(timeout=60) if asked is None else asked.get_result()
        np.testing.assert_array_equal(found.as_numpy("SECONDS"), [[np.float32(0.05)]])


def test_tensors_larger_than_any_window(client: Any, protocol: str) -> None:
    array = np.arange(8 * 700_000, dtype=np.float32).reshape(8, -1)  # 21 MiB
    answer = client.infer("wide", [given(protocol, "IN", array)])
    np.testing.assert_array_equal(answer.as_numpy("OUT"), array)


@pytest.mark.parametrize("packed", ["gzip", "deflate"])
def test_packed_requests_and_answers(client: Any, protocol: str, packed: str) -> None:
    array = np.zeros((8, 4), np.float32)
    options: dict[str, Any] = {"compression_algorithm": packed}
    if protocol == "http":
        options = {"request_compression_algorithm": packed, "response_compression_algorithm": packed}
    answer = client.infer("id_fp32", [given(protocol, "IN", array)], **options)
    np.testing.assert_array_equal(answer.as_numpy("OUT"), array)


def test_the_largest_values_as_classes(client: Any, protocol: str) -> None:
    wanted = [CLIENTS[protocol].InferRequestedOutput("OUT", class_count=2)]
    array = np.array([[1, 4, 3, 2]], np.float32)
    answer = client.infer("id_fp32", [given(protocol, "IN", array)], outputs=wanted)
    assert answer.as_numpy("OUT").tolist() == [[b"4.000000:1", b"3.000000:2"]]


def test_tensors_in_shared_memory(client: Any, protocol: str) -> None:
    from multiprocessing import shared_memory

    array = np.arange(8, dtype=np.float32).reshape(2, 4)
    memory = shared_memory.SharedMemory(create=True, size=1024)
    try:
        assert memory.buf is not None
        np.frombuffer(memory.buf, np.float32, 8)[:] = array.ravel()
        name = f"region_{protocol}"
        client.register_system_shared_memory(name, memory.name, 1024)
        status = client.get_system_shared_memory_status(**({} if protocol == "http" else {"as_json": True}))
        assert name in str(status)
        tensor = CLIENTS[protocol].InferInput("IN", [2, 4], "FP32")
        tensor.set_shared_memory(name, 32)
        wanted = CLIENTS[protocol].InferRequestedOutput("OUT")
        wanted.set_shared_memory(name, 32, offset=512)
        client.infer("id_fp32", [tensor], outputs=[wanted])
        found = np.frombuffer(bytes(memory.buf[512:544]), np.float32).reshape(2, 4)
        np.testing.assert_array_equal(found, array)
        os.truncate(f"/dev/shm/{memory.name}", 16)
        with pytest.raises(InferenceServerException, match="32 bytes, 16 came"):
            client.infer("id_fp32", [tensor])
        tensor.set_shared_memory(name, 32, offset=1000)
        with pytest.raises(InferenceServerException, match="1032"):
            client.infer("id_fp32", [tensor])
        client.unregister_system_shared_memory(name)
        with pytest.raises(InferenceServerException, match=name):
            client.infer("id_fp32", [tensor])
        for key in ("/no-such-object", "../etc/passwd", ".."):
            with pytest.raises(InferenceServerException, match="shared memory"):
                client.register_system_shared_memory("other", key, 16)
    finally:
        memory.close()
        memory.unlink()


def test_a_stream_has_every_answer_of_a_decoupled_model(server: Server) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with triton_grpc.InferenceServerClient(server.grpc) as client:
        client.start_stream(callback=lambda result, error: answers.put(error or result))
        client.async_stream_infer(
            "count", [given("grpc", "UP_TO", np.array([5], np.int32))], enable_empty_final_response=True
        )
        numbers = [answers.get(timeout=60).as_numpy("NUMBER")[0] for _ in range(5)]
        last = answers.get(timeout=60).get_response()
        client.async_stream_infer("count", [given("grpc", "WRONG", np.array([5], np.int32))], request_id="odd")
        error = answers.get(timeout=60)
        client.async_stream_infer("id_fp32", [given("grpc", "IN", ARRAYS["FP32"])])
        still = answers.get(timeout=60).as_numpy("OUT")
        client.stop_stream()
    assert numbers == [0, 1, 2, 3, 4]
    assert last.parameters["triton_final_response"].bool_param
    assert "'UP_TO'" in str(error)
    np.testing.assert_array_equal(still, ARRAYS["FP32"])


def test_a_decoupled_model_is_not_asked_for_one_answer(client: Any, protocol: str) -> None:
    with pytest.raises(InferenceServerException, match="decoupled"):
        client.infer("count", [given(protocol, "UP_TO", np.array([5], np.int32))])


def figure(server: Server, name: str) -> float:
    """Return a metric of the slow model."""
    with urllib.request.urlopen(f"http://{server.metrics}/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{") and '"slow"' in line)


def reaches(server: Server, name: str, value: float) -> None:
    while figure(server, name) != value:
        time.sleep(0.01)


@contextlib.contextmanager
def held(server: Server) -> Iterator[None]:
    """Block all runs of the slow model meanwhile."""
    (server.folder / HELD).touch()
    try:
        yield
    finally:
        (server.folder / HELD).unlink()


def test_more_than_the_queue_holds_is_refused_at_once(server: Server) -> None:
    async def flood() -> list[Any]:
        async with triton_grpc_aio.InferenceServerClient(server.grpc) as client:
            tensor = given("grpc", "SECONDS", np.zeros((4, 1), np.float32))
            with held(server):
                calls = [asyncio.create_task(client.infer("slow", [tensor])) for _ in range(30)]
                await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            found = await asyncio.gather(*calls, return_exceptions=True)
        return [one.status() if isinstance(one, InferenceServerException) else "ok" for one in found]

    received = asyncio.run(flood())
    assert set(received) == {"ok", "StatusCode.RESOURCE_EXHAUSTED"}
    assert received.count("ok") >= 9  # one active request and eight queued ones


def test_requests_that_share_a_run_get_their_own_rows(server: Server) -> None:
    async def several() -> list[float]:
        async with triton_grpc_aio.InferenceServerClient(server.grpc) as client:
            rows = [np.full((1, 1), place / 1000, np.float32) for place in range(8)]
            before = await client.get_inference_statistics("slow", as_json=True)
            with held(server):
                calls = [asyncio.create_task(client.infer("slow", [given("grpc", "SECONDS", row)])) for row in rows]
                while await asyncio.to_thread(figure, server, "cotenant_serve_waiting_requests") < 4:
                    pass
            found = await asyncio.gather(*calls)
            after = await client.get_inference_statistics("slow", as_json=True)
        runs = [int(one["model_stats"][0].get("execution_count", 0)) for one in (before, after)]
        assert 1 < runs[1] - runs[0] < 8  # the first one alone, the others together
        return [round(float(one.as_numpy("SECONDS")[0, 0]), 4) for one in found]

    assert asyncio.run(several()) == [round(place / 1000, 4) for place in range(8)]


def test_a_deadline_that_cannot_be_met(client: Any, protocol: str) -> None:
    tensor = given(protocol, "SECONDS", np.full((1, 1), 0.05, np.float32))
    client.infer("slow", [tensor])
    with pytest.raises(InferenceServerException) as caught:
        client.infer("slow", [tensor], timeout=10)
    assert caught.value.status() == {"http": "503", "grpc": "StatusCode.DEADLINE_EXCEEDED"}[protocol]


def test_a_thousand_requests_at_once(server: Server, protocol: str) -> None:
    async def many() -> list[Any]:
        module: Any = triton_grpc_aio if protocol == "grpc" else triton_http_aio
        address = server.grpc if protocol == "grpc" else server.http
        options = {} if protocol == "grpc" else {"conn_limit": 200}
        async with module.InferenceServerClient(address, **options) as client:
            arrays = [np.full((1, 4), number, np.int64) for number in range(1000)]
            calls = [client.infer("id_int64", [given(protocol, "IN", array)]) for array in arrays]
            return [answer.as_numpy("OUT")[0, 0] for answer in await asyncio.gather(*calls)]

    assert asyncio.run(many()) == list(range(1000))


def test_a_cancelled_request_is_not_run(server: Server) -> None:
    def arrived(calls: int) -> None:
        while sum(figure(server, f"cotenant_serve_{name}") for name in ("active_runs", "waiting_requests")) != calls:
            time.sleep(0.01)

    async def cancel() -> int:
        async with triton_grpc_aio.InferenceServerClient(server.grpc) as client:
            tensor = given("grpc", "SECONDS", np.zeros((4, 1), np.float32))
            with held(server):
                first = asyncio.create_task(client.infer("slow", [tensor]))
                begun = 0
                while (active_runs := figure(server, "cotenant_serve_active_runs")) != begun or not begun:
                    begun = max(
                        1, int(active_runs)
                    )  # including the previous one, if it was assigned to the core in advance
                    await asyncio.to_thread(arrived, begun)
                    another = asyncio.create_task(client.infer("slow", [tensor]))
                    await asyncio.to_thread(arrived, begun + 1)
                    another.cancel()
                    await asyncio.to_thread(reaches, server, "cotenant_serve_cancelled_total", cancelled + begun)
                    await asyncio.to_thread(reaches, server, "cotenant_serve_waiting_requests", 0)
            await first
        return begun

    rows, cancelled = figure(server, "nv_inference_count"), figure(server, "cotenant_serve_cancelled_total")
    begun = asyncio.run(cancel())
    reaches(server, "cotenant_serve_active_runs", 0)
    assert rows + 4 <= figure(server, "nv_inference_count") <= rows + 4 * begun


def test_json_that_is_none(server: Server) -> None:
    body = b'{"inputs": [{"name": "IN", "shape": [1, 4]'
    asked = urllib.request.Request(f"http://{server.http}/v2/models/id_fp32/infer", body, method="POST")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(asked)
    assert caught.value.code == 400
    assert "JSON" in json.loads(caught.value.read())["error"]
