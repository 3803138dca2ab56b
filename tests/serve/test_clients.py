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

from tests.support.model_servers import BEARER, HELD, ONNX_TYPES, Server, explicit_control, make_models

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
    server = Server(folder, "--cores", "1", *explicit_control(folder))
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


@pytest.fixture
def admin_client(server: Server, protocol: str) -> Iterator[Any]:
    client = CLIENTS[protocol].InferenceServerClient(server.admin)
    yield client
    client.close()


def input_tensor(protocol: str, name: str, array: np.ndarray, datatype: str = "") -> Any:
    tensor = CLIENTS[protocol].InferInput(name, list(array.shape), datatype or np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array)
    return tensor


@pytest.mark.parametrize("datatype", ONNX_TYPES)
def test_every_datatype_round_trips(client: Any, protocol: str, datatype: str) -> None:
    array = ARRAYS[datatype]
    answer = client.infer(f"id_{datatype.lower()}", [input_tensor(protocol, "IN", array, datatype)])
    np.testing.assert_array_equal(answer.as_numpy("OUT"), array)


@pytest.mark.parametrize("datatype", [name for name in ONNX_TYPES if name not in ("FP16", "BF16")])
def test_datatypes_round_trip_as_json(server: Server, datatype: str) -> None:
    array = ARRAYS[datatype]
    with triton_http.InferenceServerClient(server.http) as client:
        tensor = triton_http.InferInput("IN", [1, 4], datatype)
        tensor.set_data_from_numpy(array, binary_data=False)
        outputs = [triton_http.InferRequestedOutput("OUT", binary_data=False)]
        answer = client.infer(f"id_{datatype.lower()}", [tensor], outputs=outputs)
        values = answer.get_output("OUT")["data"]
    expected = [item.decode() for item in array.ravel()] if datatype == "BYTES" else array.ravel().tolist()
    assert values == expected


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_response_has_the_shape_of_the_batch(client: Any, protocol: str, rows: int) -> None:
    a = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    outputs = [CLIENTS[protocol].InferRequestedOutput("DIFFERENCE")]
    answer = client.infer(
        "both", [input_tensor(protocol, "B", a * 2), input_tensor(protocol, "A", a)], outputs=outputs, request_id="7"
    )
    np.testing.assert_array_equal(answer.as_numpy("DIFFERENCE"), -a)
    assert answer.as_numpy("SUM") is None
    response = answer.get_response()
    assert (response["id"] if protocol == "http" else response.id) == "7"


@pytest.mark.parametrize(
    "name, array, words",
    [
        ("IN", np.zeros((1, 5), np.float32), ["'IN'", "[1, 5]", "[-1, 4]"]),
        ("IN", np.zeros((1, 4), np.int32), ["'IN'", "INT32", "FP32"]),
        ("OTHER", np.zeros((1, 4), np.float32), ["'IN'", "missing"]),
        ("IN", np.zeros((9, 4), np.float32), ["'IN'", "9 rows", "1 to 8"]),
    ],
)
def test_invalid_input_error_names_tensor_and_expected_value(
    client: Any, protocol: str, name: str, array: np.ndarray, words: list[str]
) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer("id_fp32", [input_tensor(protocol, name, array)])
    for word in words:
        assert word in caught.value.message()
    assert caught.value.status() == {"http": "400", "grpc": "StatusCode.INVALID_ARGUMENT"}[protocol]


def test_model_failure_is_reported_with_its_message(client: Any, protocol: str) -> None:
    with pytest.raises(InferenceServerException, match="on purpose") as caught:
        client.infer("fails", [input_tensor(protocol, "X", np.zeros(1, np.float32))])
    assert caught.value.status() == {"http": "500", "grpc": "StatusCode.INTERNAL"}[protocol]


def test_unknown_model_is_not_found(client: Any, protocol: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer("unknown", [input_tensor(protocol, "X", np.zeros(1, np.float32))])
    assert caught.value.status() == {"http": "404", "grpc": "StatusCode.NOT_FOUND"}[protocol]
    assert not client.is_model_ready("unknown")


def test_health_metadata_and_config_of_server_and_model(client: Any, protocol: str) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("both")
    assert client.is_model_ready("both", "1")
    assert not client.is_model_ready("both", "2")
    as_json = {} if protocol == "http" else {"as_json": True}
    assert client.get_server_metadata(**as_json)["name"] == "cotenant"
    metadata = client.get_model_metadata("both", **as_json)
    assert [tensor["name"] for tensor in metadata["inputs"]] == ["A", "B"]
    assert [int(size) for size in metadata["inputs"][0]["shape"]] == [-1, 3]
    config = client.get_model_config("both", **as_json)
    config = config.get("config", config)
    assert config["max_batch_size"] == 8
    assert [int(size) for size in config["input"][0]["dims"]] == [3]


def test_statistics_count_the_rows_of_a_request(client: Any, protocol: str) -> None:
    as_json = {} if protocol == "http" else {"as_json": True}

    def count() -> int:
        (statistics,) = client.get_inference_statistics("id_int64", **as_json)["model_stats"]
        return int(statistics.get("inference_count", 0))

    before = count()
    client.infer("id_int64", [input_tensor(protocol, "IN", np.zeros((3, 4), np.int64))])
    assert count() == before + 3


def test_broken_model_is_unavailable_and_others_are_ready(
    client: Any, admin_client: Any, protocol: str, server: Server
) -> None:
    assert "broken" not in server.models
    index = client.get_model_repository_index(**({} if protocol == "http" else {"as_json": True}))
    states = {entry["name"]: entry for entry in (index if protocol == "http" else index["models"])}
    assert states["both"]["state"] == "READY"
    assert states["broken"]["state"] == "UNAVAILABLE"
    assert "broken.onnx" in states["broken"]["reason"]
    with pytest.raises(InferenceServerException, match=r"broken\.onnx"):
        admin_client.load_model("broken", headers=BEARER)


def test_model_can_be_unloaded_and_loaded_again(client: Any, admin_client: Any, protocol: str) -> None:
    name = "id_uint8"
    admin_client.unload_model(name, headers=BEARER)
    assert not client.is_model_ready(name)
    with pytest.raises(InferenceServerException):
        client.infer(name, [input_tensor(protocol, "IN", ARRAYS["UINT8"])])
    admin_client.load_model(name, headers=BEARER)
    assert client.is_model_ready(name)
    client.infer(name, [input_tensor(protocol, "IN", ARRAYS["UINT8"])])
    with pytest.raises(InferenceServerException, match="no such model"):
        admin_client.load_model("unknown", headers=BEARER)


def test_reload_answers_requests_of_the_previous_instance(server: Server, admin_client: Any, protocol: str) -> None:
    with CLIENTS[protocol].InferenceServerClient(server.grpc if protocol == "grpc" else server.http) as client:
        tensor = input_tensor(protocol, "SECONDS", np.full((1, 1), 0.05, np.float32))
        answers: queue.Queue[Any] = queue.Queue()
        pending = None
        if protocol == "http":
            pending = client.async_infer("slow", [tensor])
        else:
            client.async_infer("slow", [tensor], callback=lambda result, error: answers.put(error or result))
        admin_client.load_model("slow", headers=BEARER)
        answer = answers.get(timeout=60) if pending is None else pending.get_result()
        np.testing.assert_array_equal(answer.as_numpy("SECONDS"), [[np.float32(0.05)]])


def test_tensors_larger_than_flow_control_windows_round_trip(client: Any, protocol: str) -> None:
    array = np.arange(8 * 700_000, dtype=np.float32).reshape(8, -1)  # 21 MiB
    answer = client.infer("wide", [input_tensor(protocol, "IN", array)])
    np.testing.assert_array_equal(answer.as_numpy("OUT"), array)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests_and_responses(client: Any, protocol: str, algorithm: str) -> None:
    array = np.zeros((8, 4), np.float32)
    options: dict[str, Any] = {"compression_algorithm": algorithm}
    if protocol == "http":
        options = {"request_compression_algorithm": algorithm, "response_compression_algorithm": algorithm}
    answer = client.infer("id_fp32", [input_tensor(protocol, "IN", array)], **options)
    np.testing.assert_array_equal(answer.as_numpy("OUT"), array)


def test_classification_returns_the_largest_values(client: Any, protocol: str) -> None:
    outputs = [CLIENTS[protocol].InferRequestedOutput("OUT", class_count=2)]
    array = np.array([[1, 4, 3, 2]], np.float32)
    answer = client.infer("id_fp32", [input_tensor(protocol, "IN", array)], outputs=outputs)
    assert answer.as_numpy("OUT").tolist() == [[b"4.000000:1", b"3.000000:2"]]


def test_tensors_in_shared_memory_are_read_and_written(client: Any, protocol: str) -> None:
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
        output = CLIENTS[protocol].InferRequestedOutput("OUT")
        output.set_shared_memory(name, 32, offset=512)
        client.infer("id_fp32", [tensor], outputs=[output])
        result = np.frombuffer(bytes(memory.buf[512:544]), np.float32).reshape(2, 4)
        np.testing.assert_array_equal(result, array)
        os.truncate(f"/dev/shm/{memory.name}", 16)
        with pytest.raises(InferenceServerException, match="32 bytes, received 16"):
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


def test_stream_delivers_every_response_of_a_decoupled_model(server: Server) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with triton_grpc.InferenceServerClient(server.grpc) as client:
        client.start_stream(callback=lambda result, error: answers.put(error or result))
        client.async_stream_infer(
            "count", [input_tensor("grpc", "UP_TO", np.array([5], np.int32))], enable_empty_final_response=True
        )
        numbers = [answers.get(timeout=60).as_numpy("NUMBER")[0] for _ in range(5)]
        last = answers.get(timeout=60).get_response()
        client.async_stream_infer("count", [input_tensor("grpc", "WRONG", np.array([5], np.int32))], request_id="odd")
        error = answers.get(timeout=60)
        client.async_stream_infer("id_fp32", [input_tensor("grpc", "IN", ARRAYS["FP32"])])
        later_output = answers.get(timeout=60).as_numpy("OUT")
        client.stop_stream()
    assert numbers == [0, 1, 2, 3, 4]
    assert last.parameters["triton_final_response"].bool_param
    assert "'UP_TO'" in str(error)
    np.testing.assert_array_equal(later_output, ARRAYS["FP32"])


def test_decoupled_model_rejects_unary_request(client: Any, protocol: str) -> None:
    with pytest.raises(InferenceServerException, match="decoupled"):
        client.infer("count", [input_tensor(protocol, "UP_TO", np.array([5], np.int32))])


def metric(server: Server, name: str) -> float:
    """Return a metric of the slow model."""
    with urllib.request.urlopen(f"http://{server.metrics}/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{") and '"slow"' in line)


def wait_for_metric(server: Server, name: str, value: float) -> None:
    while metric(server, name) != value:
        time.sleep(0.01)


@contextlib.contextmanager
def blocked_runs(server: Server) -> Iterator[None]:
    """Block all runs of the slow model meanwhile."""
    (server.folder / HELD).touch()
    try:
        yield
    finally:
        (server.folder / HELD).unlink()


def test_requests_beyond_the_queue_limit_are_rejected(server: Server) -> None:
    async def flood() -> list[Any]:
        async with triton_grpc_aio.InferenceServerClient(server.grpc) as client:
            tensor = input_tensor("grpc", "SECONDS", np.zeros((4, 1), np.float32))
            with blocked_runs(server):
                calls = [asyncio.create_task(client.infer("slow", [tensor])) for _ in range(30)]
                await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            results = await asyncio.gather(*calls, return_exceptions=True)
        return [result.status() if isinstance(result, InferenceServerException) else "ok" for result in results]

    statuses = asyncio.run(flood())
    assert set(statuses) == {"ok", "StatusCode.RESOURCE_EXHAUSTED"}
    assert statuses.count("ok") >= 9  # one active request and eight queued ones


def test_requests_that_share_a_run_get_their_own_rows(server: Server) -> None:
    async def infer_concurrently() -> list[float]:
        async with triton_grpc_aio.InferenceServerClient(server.grpc) as client:
            rows = [np.full((1, 1), index / 1000, np.float32) for index in range(8)]
            before = await client.get_inference_statistics("slow", as_json=True)
            with blocked_runs(server):
                calls = [
                    asyncio.create_task(client.infer("slow", [input_tensor("grpc", "SECONDS", row)])) for row in rows
                ]
                while await asyncio.to_thread(metric, server, "cotenant_serve_waiting_requests") < 4:
                    pass
            answers = await asyncio.gather(*calls)
            after = await client.get_inference_statistics("slow", as_json=True)
        runs = [int(statistics["model_stats"][0].get("execution_count", 0)) for statistics in (before, after)]
        assert 1 < runs[1] - runs[0] < 8  # the first one alone, the others together
        return [round(float(answer.as_numpy("SECONDS")[0, 0]), 4) for answer in answers]

    assert asyncio.run(infer_concurrently()) == [round(index / 1000, 4) for index in range(8)]


def test_request_whose_timeout_cannot_be_met_is_rejected(client: Any, protocol: str) -> None:
    tensor = input_tensor(protocol, "SECONDS", np.full((1, 1), 0.05, np.float32))
    client.infer("slow", [tensor])
    with pytest.raises(InferenceServerException) as caught:
        client.infer("slow", [tensor], timeout=10)
    assert caught.value.status() == {"http": "503", "grpc": "StatusCode.DEADLINE_EXCEEDED"}[protocol]


def test_a_thousand_concurrent_requests_are_answered(server: Server, protocol: str) -> None:
    async def infer_concurrently() -> list[Any]:
        module: Any = triton_grpc_aio if protocol == "grpc" else triton_http_aio
        address = server.grpc if protocol == "grpc" else server.http
        options = {} if protocol == "grpc" else {"conn_limit": 200}
        async with module.InferenceServerClient(address, **options) as client:
            arrays = [np.full((1, 4), number, np.int64) for number in range(1000)]
            calls = [client.infer("id_int64", [input_tensor(protocol, "IN", array)]) for array in arrays]
            return [answer.as_numpy("OUT")[0, 0] for answer in await asyncio.gather(*calls)]

    assert asyncio.run(infer_concurrently()) == list(range(1000))


def test_cancelled_request_is_not_run(server: Server) -> None:
    def wait_for_arrivals(calls: int) -> None:
        while sum(metric(server, f"cotenant_serve_{name}") for name in ("active_runs", "waiting_requests")) != calls:
            time.sleep(0.01)

    async def cancel() -> int:
        async with triton_grpc_aio.InferenceServerClient(server.grpc) as client:
            tensor = input_tensor("grpc", "SECONDS", np.zeros((4, 1), np.float32))
            with blocked_runs(server):
                first = asyncio.create_task(client.infer("slow", [tensor]))
                started = 0
                while (active_runs := metric(server, "cotenant_serve_active_runs")) != started or not started:
                    started = max(
                        1, int(active_runs)
                    )  # including the previous one, if it was assigned to the core in advance
                    await asyncio.to_thread(wait_for_arrivals, started)
                    second = asyncio.create_task(client.infer("slow", [tensor]))
                    await asyncio.to_thread(wait_for_arrivals, started + 1)
                    second.cancel()
                    await asyncio.to_thread(
                        wait_for_metric, server, "cotenant_serve_cancelled_total", cancelled + started
                    )
                    await asyncio.to_thread(wait_for_metric, server, "cotenant_serve_waiting_requests", 0)
            await first
        return started

    rows, cancelled = metric(server, "nv_inference_count"), metric(server, "cotenant_serve_cancelled_total")
    started = asyncio.run(cancel())
    wait_for_metric(server, "cotenant_serve_active_runs", 0)
    assert rows + 4 <= metric(server, "nv_inference_count") <= rows + 4 * started


def test_truncated_json_is_rejected(server: Server) -> None:
    body = b'{"inputs": [{"name": "IN", "shape": [1, 4]'
    request = urllib.request.Request(f"http://{server.http}/v2/models/id_fp32/infer", body, method="POST")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)
    assert caught.value.code == 400
    assert "JSON" in json.loads(caught.value.read())["error"]
