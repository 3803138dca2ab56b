"""Inference requests and responses over HTTP: JSON, with the binary tensor data extension."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from cotenant.serve.model.tensor import Datatype
from cotenant.serve.protocol.oip.infer import (
    TENSORS_LIMIT,
    InferError,
    InferRequest,
    RegionSlice,
    RequestedOutput,
    RequestInput,
    known_parameters,
    quoted,
    shape_of,
)
from cotenant.serve.protocol.oip.tensor import Array, TensorError, to_list, to_raw

_NONE: Final[dict[str, Any]] = {}
_FRONT_KEPT_BYTES: Final = 1024
_FRONTS_KEPT: Final = 1024
_FRONT_HELD_BYTES: Final = 64 << 10
"""Maximum JSON that may stay in memory together with the tensors that follow it."""


class _JsonInput(msgspec.Struct, gc=False):
    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = _NONE
    data: Any = None


class _JsonOutput(msgspec.Struct, gc=False):
    name: str
    parameters: dict[str, Any] = _NONE


class _JsonRequest(msgspec.Struct, gc=False):
    inputs: list[_JsonInput]
    id: str = ""
    parameters: dict[str, Any] = _NONE
    outputs: list[_JsonOutput] = []


_decode: Final = msgspec.json.Decoder(_JsonRequest).decode
_encode: Final = msgspec.json.Encoder().encode


class ResponseOutput(NamedTuple):
    """An output tensor; `place` is set if it was written to shared memory."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    array: Array
    binary: bool
    place: RegionSlice | None = None


class _Front(NamedTuple):
    """The decoded JSON of a request, without the binary data that follows it."""

    id: str
    inputs: tuple[tuple[RequestInput, int], ...]
    """Each with the size of its binary data; negative: none."""
    raw_bytes: int
    outputs: tuple[RequestedOutput, ...]
    priority: int
    timeout_ns: int
    binary: bool
    parameters: dict[str, Any]


def read_request(model: str, version: str, body: memoryview, json_length: int) -> InferRequest:
    """Decode a body whose first `json_length` bytes are JSON; negative: all of it."""
    if json_length > len(body):
        said = f"Inference-Header-Content-Length is {json_length}"
        raise InferError(f"{said}, expected at most the {len(body)} bytes of the body")
    if json_length < 0:
        json_length = len(body)
    text = bytes(body[:json_length])
    front = _known_front(text) if json_length <= _FRONT_KEPT_BYTES else _front(text)
    place = json_length
    if place + front.raw_bytes != len(body):
        came = f"{len(body) - place} bytes follow the JSON"
        raise InferError(f"{came}, expected {front.raw_bytes}, the sum of every binary_data_size")
    if json_length > max(front.raw_bytes, _FRONT_HELD_BYTES):  # a view of the tensors would keep the whole body alive
        body = memoryview(bytes(body[place:]))
        place = 0
    inputs = []
    for tensor, size in front.inputs:
        if size < 0:
            inputs.append(tensor)
        else:
            inputs.append(RequestInput(tensor.name, tensor.datatype, tensor.shape, body[place : place + size]))
            place += size
    return InferRequest(
        model,
        version,
        front.id,
        tuple(inputs),
        front.outputs,
        front.priority,
        front.timeout_ns,
        front.binary,
        front.parameters,
    )


def _front(text: bytes) -> _Front:
    try:
        found = _decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InferError(f"the request is no inference request in JSON: {error}") from None
    if len(found.inputs) > TENSORS_LIMIT or len(found.outputs) > TENSORS_LIMIT:
        raise InferError(f"a request may have {TENSORS_LIMIT} inputs and as many outputs")
    inputs = tuple(_input(one) for one in found.inputs)
    priority, timeout_ns = known_parameters(found.parameters) if found.parameters else (0, 0)
    binary = _flag(found.parameters, "binary_data_output")
    outputs = tuple(_output(one, binary=binary) for one in found.outputs)
    raw_bytes = sum(max(size, 0) for _, size in inputs)
    return _Front(found.id, inputs, raw_bytes, outputs, priority, timeout_ns, binary, found.parameters)


_known_front: Final = functools.lru_cache(_FRONTS_KEPT)(_front)
"""Cached, because clients that send binary tensors repeat the same JSON."""


def _input(one: _JsonInput) -> tuple[RequestInput, int]:
    shape = shape_of(one.name, one.shape)
    size = one.parameters.get("binary_data_size")
    if size is not None:
        if type(size) is not int or not 0 <= size < 1 << 48:
            raise InferError(f"input {one.name!r} has binary_data_size {quoted(size)}, expected a number of bytes")
        return RequestInput(one.name, one.datatype, shape), size
    where = region_slice(one.name, one.parameters)
    if where is not None:
        return RequestInput(one.name, one.datatype, shape, place=where), -1
    if one.data is None:
        raise InferError(f"input {one.name!r} has neither data nor binary_data_size nor shared_memory_region")
    return RequestInput(one.name, one.datatype, shape, data=one.data), -1


def _output(one: _JsonOutput, *, binary: bool) -> RequestedOutput:
    parameters = one.parameters
    if not parameters:
        return RequestedOutput(one.name, binary)
    classes = parameters.get("classification", 0)
    if type(classes) is not int or classes < 0:
        raise InferError(f"output {one.name!r} has classification {quoted(classes)}, expected a whole number")
    chosen = _flag(parameters, "binary_data") if "binary_data" in parameters else binary
    return RequestedOutput(one.name, chosen, classes, region_slice(one.name, parameters))


def _flag(parameters: dict[str, Any], name: str) -> bool:
    value = parameters.get(name, False)
    if type(value) is not bool:
        raise InferError(f"parameter {name!r} is {quoted(value)}, expected true or false")
    return value


def region_slice(tensor: str, parameters: dict[str, Any]) -> RegionSlice | None:
    """Return the range of shared memory that a tensor's parameters name, or None."""
    region = parameters.get("shared_memory_region")
    if region is None:
        return None
    offset = parameters.get("shared_memory_offset", 0)
    size = parameters.get("shared_memory_byte_size")
    if type(region) is not str or type(offset) is not int or type(size) is not int or offset < 0 or size < 0:
        want = "a region's name, a shared_memory_byte_size and perhaps a shared_memory_offset"
        raise InferError(f"tensor {tensor!r} is to be in shared memory, expected {want}")
    return RegionSlice(region, offset, size)


class ResponseBody(NamedTuple):
    """A body, and the length of its JSON; negative: all of it."""

    parts: list[bytes]
    json_length: int


def write_response(
    model: str,
    version: str,
    request_id: str,
    outputs: Sequence[ResponseOutput],
    parameters: dict[str, Any] | None = None,
) -> ResponseBody:
    """Encode a response."""
    if not request_id and not parameters:
        quick = _write_binary(model, version, outputs)
        if quick is not None:
            return quick
    listed = []
    raws: list[bytes] = []
    for name, datatype, shape, array, binary, place in outputs:
        entry: dict[str, Any] = {"name": name, "datatype": datatype.value, "shape": shape}
        if place is not None:
            entry["parameters"] = {
                "shared_memory_region": place.region,
                "shared_memory_offset": place.offset,
                "shared_memory_byte_size": place.size,
            }
        elif binary:
            raw = to_raw(datatype, array)
            entry["parameters"] = {"binary_data_size": len(raw)}
            raws.append(raw)
        else:
            try:
                entry["data"] = to_list(datatype, array)
            except TensorError as error:
                raise InferError(f"output {name!r}: {error}") from None
        listed.append(entry)
    tree: dict[str, Any] = {"model_name": model, "model_version": version, "outputs": listed}
    if request_id:
        tree["id"] = request_id
    if parameters:
        tree["parameters"] = parameters
    front = _encode(tree)
    return ResponseBody([front, *raws], len(front) if raws else -1)


def _write_binary(model: str, version: str, outputs: Sequence[ResponseOutput]) -> ResponseBody | None:
    """Encode an all-binary response: its JSON depends on names and shapes only, and is cached."""
    shapes = []
    raws = []
    for name, datatype, shape, array, binary, place in outputs:
        if not binary or place is not None:
            return None
        raw = to_raw(datatype, array)
        shapes.append((name, datatype.value, shape, len(raw)))
        raws.append(raw)
    if not raws:
        return None
    front = _known_answer(model, version, tuple(shapes))
    return ResponseBody([front, *raws], len(front))


@functools.lru_cache(_FRONTS_KEPT)
def _known_answer(model: str, version: str, shapes: tuple[tuple[str, str, tuple[int, ...], int], ...]) -> bytes:
    listed = [
        {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}
        for name, datatype, shape, size in shapes
    ]
    return _encode({"model_name": model, "model_version": version, "outputs": listed})


def write_error(text: str) -> bytes:
    """Encode an error."""
    return _encode({"error": text})
