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
_CACHED_HEADER_BYTES: Final = 1024
_CACHED_HEADERS: Final = 1024
_PIECE: Final = 4096
"""Elements that are encoded at once."""
_HELD_HEADER_BYTES: Final = 64 << 10
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
    """An output tensor; `location` is set if it was written to shared memory."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    array: Array
    binary: bool
    location: RegionSlice | None = None


class _RequestHeader(NamedTuple):
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
        declared = f"Inference-Header-Content-Length is {json_length}"
        raise InferError(f"{declared}, expected at most the {len(body)} bytes of the body")
    if json_length < 0:
        json_length = len(body)
    text = bytes(body[:json_length])
    header = _cached_header(text) if json_length <= _CACHED_HEADER_BYTES else _decode_header(text)
    offset = json_length
    if offset + header.raw_bytes != len(body):
        actual = f"{len(body) - offset} bytes follow the JSON"
        raise InferError(f"{actual}, expected {header.raw_bytes}, the sum of every binary_data_size")
    if json_length > max(header.raw_bytes, _HELD_HEADER_BYTES):  # a view of the tensors would keep the whole body alive
        body = memoryview(bytes(body[offset:]))
        offset = 0
    inputs = []
    for tensor, size in header.inputs:
        if size < 0:
            inputs.append(tensor)
        else:
            inputs.append(RequestInput(tensor.name, tensor.datatype, tensor.shape, body[offset : offset + size]))
            offset += size
    return InferRequest(
        model,
        version,
        header.id,
        tuple(inputs),
        header.outputs,
        header.priority,
        header.timeout_ns,
        header.binary,
        header.parameters,
    )


def _decode_header(text: bytes) -> _RequestHeader:
    try:
        request = _decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InferError(f"the request is not a valid inference request in JSON: {error}") from None
    if len(request.inputs) > TENSORS_LIMIT or len(request.outputs) > TENSORS_LIMIT:
        raise InferError(f"a request may have at most {TENSORS_LIMIT} inputs and {TENSORS_LIMIT} outputs")
    inputs = tuple(_input(tensor) for tensor in request.inputs)
    priority, timeout_ns = known_parameters(request.parameters) if request.parameters else (0, 0)
    binary = _flag(request.parameters, "binary_data_output")
    outputs = tuple(_output(tensor, binary=binary) for tensor in request.outputs)
    raw_bytes = sum(max(size, 0) for _, size in inputs)
    return _RequestHeader(request.id, inputs, raw_bytes, outputs, priority, timeout_ns, binary, request.parameters)


_cached_header: Final = functools.lru_cache(_CACHED_HEADERS)(_decode_header)
"""Cached, because clients that send binary tensors repeat the same JSON."""


def _input(tensor: _JsonInput) -> tuple[RequestInput, int]:
    shape = shape_of(tensor.name, tensor.shape)
    size = tensor.parameters.get("binary_data_size")
    if size is not None:
        if type(size) is not int or not 0 <= size < 1 << 48:
            raise InferError(f"input {tensor.name!r} has binary_data_size {quoted(size)}, expected a number of bytes")
        return RequestInput(tensor.name, tensor.datatype, shape), size
    location = region_slice(tensor.name, tensor.parameters)
    if location is not None:
        return RequestInput(tensor.name, tensor.datatype, shape, location=location), -1
    if tensor.data is None:
        raise InferError(f"input {tensor.name!r} has neither data nor binary_data_size nor shared_memory_region")
    return RequestInput(tensor.name, tensor.datatype, shape, data=tensor.data), -1


def _output(output: _JsonOutput, *, binary: bool) -> RequestedOutput:
    parameters = output.parameters
    if not parameters:
        return RequestedOutput(output.name, binary)
    classes = parameters.get("classification", 0)
    if type(classes) is not int or classes < 0:
        raise InferError(
            f"output {output.name!r} has classification {quoted(classes)}, expected a non-negative integer"
        )
    is_binary = _flag(parameters, "binary_data") if "binary_data" in parameters else binary
    return RequestedOutput(output.name, is_binary, classes, region_slice(output.name, parameters))


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
        expected = "a region name, shared_memory_byte_size and optionally shared_memory_offset"
        raise InferError(f"the shared memory parameters of tensor {tensor!r} are invalid, expected {expected}")
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
        binary_response = _write_binary(model, version, outputs)
        if binary_response is not None:
            return binary_response
    entries = []
    raws: list[bytes] = []
    for name, datatype, shape, array, binary, location in outputs:
        entry: dict[str, Any] = {"name": name, "datatype": datatype.value, "shape": shape}
        if location is not None:
            pass  # as from Triton: NVIDIA's C++ client expects a binary_data_size wherever there are parameters
        elif binary:
            raw = to_raw(datatype, array)
            entry["parameters"] = {"binary_data_size": len(raw)}
            raws.append(raw)
        else:
            try:
                entry["data"] = _encoded(datatype, array)
            except TensorError as error:
                raise InferError(f"output {name!r}: {error}") from None
        entries.append(entry)
    tree: dict[str, Any] = {"model_name": model, "model_version": version, "outputs": entries}
    if request_id:
        tree["id"] = request_id
    if parameters:
        tree["parameters"] = parameters
    header = _encode(tree)
    return ResponseBody([header, *raws], len(header) if raws else -1)


def _encoded(datatype: Datatype, array: Array) -> list[Any] | msgspec.Raw:
    """Return the elements for JSON; many are encoded in pieces, between which other threads can run."""
    if array.size <= _PIECE:
        return to_list(datatype, array)
    flat = array.ravel()
    pieces = [_encode(to_list(datatype, flat[begin : begin + _PIECE]))[1:-1] for begin in range(0, flat.size, _PIECE)]
    return msgspec.Raw(b"[" + b",".join(pieces) + b"]")


def _write_binary(model: str, version: str, outputs: Sequence[ResponseOutput]) -> ResponseBody | None:
    """Encode an all-binary response: its JSON depends on names and shapes only, and is cached."""
    shapes = []
    raws = []
    for name, datatype, shape, array, binary, location in outputs:
        if not binary or location is not None:
            return None
        raw = to_raw(datatype, array)
        shapes.append((name, datatype.value, shape, len(raw)))
        raws.append(raw)
    if not raws:
        return None
    header = _cached_response_header(model, version, tuple(shapes))
    return ResponseBody([header, *raws], len(header))


@functools.lru_cache(_CACHED_HEADERS)
def _cached_response_header(
    model: str, version: str, shapes: tuple[tuple[str, str, tuple[int, ...], int], ...]
) -> bytes:
    entries = [
        {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}
        for name, datatype, shape, size in shapes
    ]
    return _encode({"model_name": model, "model_version": version, "outputs": entries})


def write_error(text: str) -> bytes:
    """Encode an error."""
    return _encode({"error": text})
