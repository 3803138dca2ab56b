"""How does an inference request look over HTTP? JSON, with raw tensors behind it where the binary extension is used."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from cotenant.domain.tensor import Datatype
from cotenant.format.infer import (
    TENSORS_LIMIT,
    GivenInput,
    InferError,
    InferRequest,
    Place,
    WantedOutput,
    known_parameters,
    shape_of,
    shown,
)
from cotenant.format.tensor import Array, TensorError, to_list, to_raw

_NONE: Final[dict[str, Any]] = {}
_FRONT_KEPT_BYTES: Final = 1024
_FRONTS_KEPT: Final = 1024
_FRONT_HELD_BYTES: Final = 64 << 10
"""So much JSON may stay in memory beside the tensors that follow it."""


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


class Output(NamedTuple):
    """A tensor of an answer: its content as bytes, or None where it was put into shared memory."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    array: Array
    binary: bool
    place: Place | None = None


class _Front(NamedTuple):
    """The JSON of a request, read and found in order; contents that follow it are not here."""

    id: str
    inputs: tuple[tuple[GivenInput, int], ...]
    """Each with the size of its raw content, negative where it has none."""
    raw_bytes: int
    outputs: tuple[WantedOutput, ...]
    priority: int
    timeout_ns: int
    binary: bool
    parameters: dict[str, Any]


def read_request(model: str, version: str, body: memoryview, json_length: int) -> InferRequest:
    """The request in a body whose first `json_length` bytes are JSON; all of it if negative."""
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
    if json_length > max(front.raw_bytes, _FRONT_HELD_BYTES):  # a view of the tensors would keep all of the body
        body = memoryview(bytes(body[place:]))
        place = 0
    inputs = []
    for tensor, size in front.inputs:
        if size < 0:
            inputs.append(tensor)
        else:
            inputs.append(GivenInput(tensor.name, tensor.datatype, tensor.shape, body[place : place + size]))
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
"""A client that sends tensors as binary data says the same JSON again and again."""


def _input(one: _JsonInput) -> tuple[GivenInput, int]:
    shape = shape_of(one.name, one.shape)
    size = one.parameters.get("binary_data_size")
    if size is not None:
        if type(size) is not int or not 0 <= size < 1 << 48:
            raise InferError(f"input {one.name!r} has binary_data_size {shown(size)}, expected a number of bytes")
        return GivenInput(one.name, one.datatype, shape), size
    where = place_in(one.name, one.parameters)
    if where is not None:
        return GivenInput(one.name, one.datatype, shape, place=where), -1
    if one.data is None:
        raise InferError(f"input {one.name!r} has neither data nor binary_data_size nor shared_memory_region")
    return GivenInput(one.name, one.datatype, shape, data=one.data), -1


def _output(one: _JsonOutput, *, binary: bool) -> WantedOutput:
    parameters = one.parameters
    if not parameters:
        return WantedOutput(one.name, binary)
    classes = parameters.get("classification", 0)
    if type(classes) is not int or classes < 0:
        raise InferError(f"output {one.name!r} has classification {shown(classes)}, expected a whole number")
    chosen = _flag(parameters, "binary_data") if "binary_data" in parameters else binary
    return WantedOutput(one.name, chosen, classes, place_in(one.name, parameters))


def _flag(parameters: dict[str, Any], name: str) -> bool:
    value = parameters.get(name, False)
    if type(value) is not bool:
        raise InferError(f"parameter {name!r} is {shown(value)}, expected true or false")
    return value


def place_in(tensor: str, parameters: dict[str, Any]) -> Place | None:
    """Where in shared memory a tensor is, as its parameters say; None if they do not."""
    region = parameters.get("shared_memory_region")
    if region is None:
        return None
    offset = parameters.get("shared_memory_offset", 0)
    size = parameters.get("shared_memory_byte_size")
    if type(region) is not str or type(offset) is not int or type(size) is not int or offset < 0 or size < 0:
        want = "a region's name, a shared_memory_byte_size and perhaps a shared_memory_offset"
        raise InferError(f"tensor {tensor!r} is to be in shared memory, expected {want}")
    return Place(region, offset, size)


class Answer(NamedTuple):
    """A body, and where its JSON ends; negative: it is all JSON."""

    parts: list[bytes]
    json_length: int


def write_answer(
    model: str, version: str, request_id: str, outputs: Sequence[Output], parameters: dict[str, Any] | None = None
) -> Answer:
    """The answer to a request."""
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
    return Answer([front, *raws], len(front) if raws else -1)


def _write_binary(model: str, version: str, outputs: Sequence[Output]) -> Answer | None:
    """The usual case: all of it binary, so that the JSON is a matter of shapes, and was mostly written before."""
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
    return Answer([front, *raws], len(front))


@functools.lru_cache(_FRONTS_KEPT)
def _known_answer(model: str, version: str, shapes: tuple[tuple[str, str, tuple[int, ...], int], ...]) -> bytes:
    listed = [
        {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}
        for name, datatype, shape, size in shapes
    ]
    return _encode({"model_name": model, "model_version": version, "outputs": listed})


def write_error(text: str) -> bytes:
    """An error in the protocol's own form."""
    return _encode({"error": text})
