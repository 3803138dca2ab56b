"""Encodings of requests, tensors and model configurations agree, and invalid data is rejected."""

import contextlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("google.protobuf")
from cotenant.errors import ConfigError
from cotenant.serve.model.event import ModelSpec
from cotenant.serve.model.tensor import Datatype, TensorSpec
from cotenant.serve.protocol.oip import infer_json, infer_proto
from cotenant.serve.protocol.oip.infer import InferError, check, signature_of
from cotenant.serve.protocol.oip.metadata import config, config_numbers, metadata
from cotenant.serve.protocol.oip.proto import MESSAGES, TYPES
from cotenant.serve.protocol.oip.tensor import NUMPY, TensorError, from_list, from_raw, size_of, to_list, to_raw
from cotenant.serve.protocol.triton.pbtxt import parse_pbtxt, read_config

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
SPEC = ModelSpec(
    "m",
    "1",
    "test",
    (TensorSpec("X", Datatype.FP32, (-1, 2)), TensorSpec("Y", Datatype.BYTES, (-1, 1))),
    (TensorSpec("Z", Datatype.FP32, (-1, 2)),),
    4,
)
SIGNATURE = signature_of(SPEC)
CONFIG = """
name: "m"  # a comment
backend: 'onnxruntime'
max_batch_size: 16
input [ { name: "X" data_type: TYPE_FP32 dims: [ 3, -1 ] }, { name: "Y", data_type: TYPE_STRING, dims: 1 } ]
output { name: "Z" data_type: TYPE_INT64 dims: [ 1 ] label_filename: "labels.txt" }
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 500 priority_levels: 3 }
instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0 ] } ]
version_policy: { latest { num_versions: 2 } }
"""


@given(st.sampled_from(list(Datatype)), SHAPES, st.data())
def test_raw_tensors_round_trip(datatype: Datatype, shape: tuple[int, ...], data: st.DataObject) -> None:
    count = int(np.prod(shape))
    if datatype is Datatype.BYTES:
        items = data.draw(st.lists(st.binary(max_size=9), min_size=count, max_size=count))
        raw = b"".join(len(item).to_bytes(4, "little") + item for item in items)
    else:
        raw = data.draw(st.binary(min_size=count * datatype.width_bytes, max_size=count * datatype.width_bytes))
    array = from_raw(datatype, shape, raw)
    assert array.shape == shape
    assert array.dtype == NUMPY[datatype]
    if datatype is not Datatype.BOOL:
        assert to_raw(datatype, array) == raw


@given(st.sampled_from(list(Datatype)), SHAPES, st.binary(max_size=80))
def test_arbitrary_bytes_are_decoded_or_rejected(datatype: Datatype, shape: tuple[int, ...], raw: bytes) -> None:
    with contextlib.suppress(TensorError):
        assert from_raw(datatype, shape, raw).shape == shape


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=8,
)


@given(st.sampled_from(list(Datatype)), SHAPES, json_values)
def test_arbitrary_json_is_decoded_as_tensor_or_rejected(datatype: Datatype, shape: tuple[int, ...], data: Any) -> None:
    with contextlib.suppress(TensorError):
        assert from_list(datatype, shape, data).shape == shape


@pytest.mark.parametrize(
    "datatype, values",
    [
        (Datatype.BOOL, [True, False]),
        (Datatype.UINT64, [0, 2**64 - 1]),
        (Datatype.INT64, [-(2**63), 2**63 - 1]),
        (Datatype.FP64, [0.1, -2.5]),
        (Datatype.BYTES, ["\u00fc", ""]),
    ],
)
def test_lists_round_trip(datatype: Datatype, values: list[Any]) -> None:
    assert to_list(datatype, from_list(datatype, (2,), values)) == values
    assert to_list(datatype, from_list(datatype, (2, 1), [[value] for value in values])) == values


@pytest.mark.parametrize(
    "datatype, values",
    [
        (Datatype.INT8, [128]),
        (Datatype.UINT8, [-1]),
        (Datatype.INT32, [1.5]),
        (Datatype.FP32, ["1"]),
        (Datatype.FP16, [65520.0]),
    ],
)
def test_list_elements_that_do_not_fit_the_datatype_are_rejected(datatype: Datatype, values: list[Any]) -> None:
    with pytest.raises(TensorError):
        from_list(datatype, (1,), values)


def as_json(tree: Any, raw: bytes = b"") -> Any:
    header = json.dumps(tree).encode()
    return infer_json.read_request("m", "", memoryview(header + raw), len(header) if raw else -1)


def test_json_binary_and_protobuf_requests_are_equivalent() -> None:
    x = np.array([[1, 2], [3, 4]], np.float32)
    y = ["a", "b"]
    plain = {"name": "X", "datatype": "FP32", "shape": [2, 2]}
    texts = {"name": "Y", "datatype": "BYTES", "shape": [2, 1], "data": y}
    binary = {**plain, "parameters": {"binary_data_size": 16}}
    message = TYPES["ModelInferRequest"](model_name="m")
    message.inputs.add(name="Y", datatype="BYTES", shape=[2, 1]).contents.bytes_contents.extend([b"a", b"b"])
    message.inputs.add(name="X", datatype="FP32", shape=[2, 2]).contents.fp32_contents.extend([1, 2, 3, 4])
    for request in (
        as_json({"inputs": [{**plain, "data": x.tolist()}, texts]}),
        as_json({"inputs": [binary, texts]}, x.tobytes()),
        infer_proto.read_request(message.SerializeToString()),
    ):
        checked = check(SIGNATURE, request)
        assert checked.rows == 2
        np.testing.assert_array_equal(checked.arrays[0], x)
        assert np.asarray(checked.arrays[1]).ravel().tolist() == [b"a", b"b"]


@given(json_values | st.dictionaries(st.sampled_from(["inputs", "outputs", "id", "parameters"]), json_values))
def test_arbitrary_json_is_decoded_as_request_or_rejected(tree: Any) -> None:
    kind = "invalid"
    try:
        check(SIGNATURE, as_json(tree))
    except InferError as error:
        kind = error.kind
    assert kind == "invalid"


@given(st.binary(max_size=120), st.integers(-1, 130))
def test_arbitrary_body_is_decoded_as_request_or_rejected(body: bytes, json_length: int) -> None:
    kind = "invalid"
    try:
        check(SIGNATURE, infer_json.read_request("m", "", memoryview(body), json_length))
    except InferError as error:
        kind = error.kind
    assert kind == "invalid"


@given(st.binary(max_size=120))
def test_arbitrary_message_is_decoded_as_request_or_rejected(body: bytes) -> None:
    kind = "invalid"
    try:
        check(SIGNATURE, infer_proto.read_request(body))
    except InferError as error:
        kind = error.kind
    assert kind == "invalid"


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Requests as clients may encode them: fields in any order, raw contents, lists, unknown fields."""
    request = TYPES["ModelInferRequest"](model_name="m", id=draw(st.sampled_from(["", "7"])))
    for number in range(draw(st.integers(0, 3))):
        tensor = request.inputs.add(name=f"X{number}", datatype="FP32", shape=[1, 2])
        if draw(st.booleans()):
            tensor.contents.fp32_contents.extend([1.0, 2.0])
    if draw(st.booleans()):
        request.parameters["priority"].int64_param = 3
    parts = [request.SerializeToString()]
    for raw in draw(st.lists(st.binary(max_size=200) | st.just(bytes(20_000)), max_size=3)):
        parts.append(TYPES["ModelInferRequest"](raw_input_contents=[raw]).SerializeToString())
    parts += draw(st.lists(st.sampled_from([b"\x42\x01x", b"\x48\x01", b"\x1a\x019"]), max_size=1))
    return b"".join(draw(st.permutations(parts)))


@given(messages(), st.integers(0, 60))
def test_cached_header_decodes_as_the_full_message(message: bytes, lost: int) -> None:
    message = message[: max(len(message) - lost, 0)] if lost < 5 else message

    def read(*, parse_fully: bool) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            if parse_fully:
                patch.setattr(infer_proto, "_split", lambda data: None)
            try:
                request = infer_proto.read_request(message)
            except InferError as error:
                return error.kind
        return request._replace(
            inputs=tuple(tensor._replace(raw=tensor.raw and bytes(tensor.raw)) for tensor in request.inputs)
        )

    assert read(parse_fully=False) == read(parse_fully=False) == read(parse_fully=True)


def test_small_tensor_does_not_keep_a_long_header_in_memory() -> None:
    """Otherwise a client could fill memory that no budget counts."""
    tensor = {"name": "X", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}
    header = json.dumps({"inputs": [tensor], "id": "x" * 100_000}).encode()
    request = infer_json.read_request("m", "", memoryview(header + bytes(8)), len(header))
    assert isinstance(request.inputs[0].raw, memoryview)
    assert memoryview(request.inputs[0].raw.obj).nbytes == 8
    message = TYPES["ModelInferRequest"](model_name="m", id="x" * 100_000, raw_input_contents=[bytes(8)])
    message.inputs.add(name="X", datatype="FP32", shape=[1, 2])
    assert infer_proto.read_request(message.SerializeToString()).inputs[0].raw == bytes(8)


@given(st.sampled_from(["", "7", "x" * 300]), st.lists(st.integers(0, 300), max_size=3))
def test_unary_response_encodes_as_the_protobuf_message(request_id: str, sizes: list[int]) -> None:
    arrays = [np.zeros((1, size), np.float32) for size in sizes]
    outputs = [
        infer_json.ResponseOutput(f"Y{number}", Datatype.FP32, array.shape, array, binary=True)
        for number, array in enumerate(arrays)
    ]
    plain = infer_proto.write_unary_response("m", "1", request_id, outputs)
    assert TYPES["ModelInferResponse"].FromString(plain) == infer_proto.write_response("m", "1", request_id, outputs)


def test_message_fields_match_the_public_protocol() -> None:
    """Compare each field with the messages that NVIDIA's client was generated from."""
    theirs = {}
    for module in ("tritonclient.grpc.service_pb2", "tritonclient.grpc.model_config_pb2"):
        for name, descriptor in pytest.importorskip(module).DESCRIPTOR.message_types_by_name.items():
            theirs[name] = descriptor
            if not name.startswith("Cuda"):  # its RegionStatus differs
                theirs.update(descriptor.nested_types_by_name)
            for request, ours in (("TraceSettingRequest", "TraceValue"), ("LogSettingsRequest", "LogValue")):
                if name == request:  # both are called SettingValue
                    theirs[ours] = descriptor.nested_types_by_name["SettingValue"]
    for name in MESSAGES:
        if name.startswith("HealthCheck"):  # from grpc.health.v1
            continue
        descriptor = theirs[name]
        for field in TYPES[name].DESCRIPTOR.fields:
            their_field = descriptor.fields_by_number[field.number]
            enum_as_number = their_field.enum_type is not None and field.cpp_type == field.CPPTYPE_INT32
            assert (their_field.name, enum_as_number or their_field.type == field.type) == (field.name, True), (
                f"{name}.{field.name}"
            )


def test_metadata_and_config_use_the_names_of_the_protocol() -> None:
    assert metadata(SPEC)["inputs"][0] == {"name": "X", "datatype": "FP32", "shape": [-1, 2]}
    tree = config(SPEC, cores=2)
    assert tree["input"][1] == {"name": "Y", "data_type": "TYPE_STRING", "dims": [1]}
    assert config_numbers(tree)["input"][1]["data_type"] == 13
    assert tree["instance_group"][0]["count"] == 2


def test_triton_config_is_applied_and_unsupported_settings_are_listed() -> None:
    triton = read_config(CONFIG, "config.pbtxt")
    assert (triton.name, triton.platform, triton.max_batch, triton.instances) == ("m", "onnxruntime", 16, 2)
    assert triton.inputs == (TensorSpec("X", Datatype.FP32, (3, -1)), TensorSpec("Y", Datatype.BYTES, (1,)))
    assert (triton.preferred_batches, triton.wait_ns) == ((4, 8), 500_000)
    differences = " | ".join(triton.differences)
    for name in ("label_filename", "priority_levels", "KIND_GPU", "version_policy"):
        assert name in differences


@pytest.mark.parametrize(
    "text", ["name", "input {", "max_batch_size: 'x'", "input { name: 'x' data_type: TYPE_X }", "}", "a: ]", "\x00"]
)
def test_invalid_triton_config_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError):
        read_config(text, "config.pbtxt")


def test_triton_config_selects_file_and_versions() -> None:
    text = 'default_model_filename: "w.onnx" version_policy: { specific { versions: [ 1, 3 ] } }'
    triton = read_config(text, "config.pbtxt")
    assert (triton.file, triton.versions) == ("w.onnx", (1, 3))
    assert len(triton.differences) == 1
    plain = read_config("version_policy { latest { num_versions: 1 } }", "config.pbtxt")
    assert (plain.versions, plain.differences) == ((), ())
    for policy in ("latest { num_versions: 2 }", "all { }", "newest { }"):
        assert read_config(f"version_policy {{ {policy} }}", "config.pbtxt").differences
    with pytest.raises(ConfigError, match="state"):
        read_config("sequence_batching { }", "config.pbtxt")


@given(st.text(alphabet="ab:{}[]<>\",'\n1 -.#\\", max_size=60))
def test_arbitrary_text_is_parsed_as_config_or_rejected(text: str) -> None:
    where = "x"
    try:
        parse_pbtxt(text, "x")
    except ConfigError as error:
        where = error.where
    assert where.startswith("x")


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_size_of_bytes_tensor_includes_its_elements(texts: list[bytes]) -> None:
    """An element takes about fifty bytes in addition to its contents: the object and the pointer to it."""
    array = np.empty(len(texts), np.object_)
    array[:] = texts
    numbers = np.zeros((3, 5), np.float32)
    assert size_of([array, numbers]) == sum(map(len, texts)) + 50 * len(texts) + 60
