"""Inference requests and responses over gRPC: raw contents, typed lists, or shared memory."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from cotenant.serve.model.tensor import Datatype
from cotenant.serve.protocol.oip.infer import (
    TENSORS_LIMIT,
    InferError,
    InferRequest,
    RequestedOutput,
    RequestInput,
    known_parameters,
    quoted,
    shape_of,
)
from cotenant.serve.protocol.oip.infer_json import ResponseOutput, region_slice
from cotenant.serve.protocol.oip.proto import TYPES
from cotenant.serve.protocol.oip.tensor import Buffer, to_raw
from cotenant.units.instant import Duration

_Request: Final = TYPES["ModelInferRequest"]
_Response: Final = TYPES["ModelInferResponse"]
_StreamResponse: Final = TYPES["ModelStreamInferResponse"]
_NONE: Final[dict[str, Any]] = {}
_FRONT_KEPT_BYTES: Final = 1024
_FRONTS_KEPT: Final = 1024
_FRONT_HELD_BYTES: Final = 64 << 10
_LENGTH_DELIMITED: Final = 2
_RAW_INPUT: Final = 7 << 3 | _LENGTH_DELIMITED
_RAW_OUTPUT: Final = bytes([6 << 3 | _LENGTH_DELIMITED])
_ID: Final = bytes([3 << 3 | _LENGTH_DELIMITED])

_CONTENTS: Final = {
    Datatype.BOOL.value: "bool_contents",
    Datatype.INT8.value: "int_contents",
    Datatype.INT16.value: "int_contents",
    Datatype.INT32.value: "int_contents",
    Datatype.INT64.value: "int64_contents",
    Datatype.UINT8.value: "uint_contents",
    Datatype.UINT16.value: "uint_contents",
    Datatype.UINT32.value: "uint_contents",
    Datatype.UINT64.value: "uint64_contents",
    Datatype.FP32.value: "fp32_contents",
    Datatype.FP64.value: "fp64_contents",
    Datatype.BYTES.value: "bytes_contents",
}
"""The list of each datatype; FP16 and BF16 have none and must be raw."""


def read_message(name: str, data: bytes) -> Any:
    """Decode a message of that type; raise `InferError` if it is invalid."""
    try:
        return TYPES[name].FromString(data)
    except (DecodeError, RecursionError) as error:
        raise InferError(f"the message is no {name}: {error}") from None


class _Front(NamedTuple):
    """A decoded request without its raw contents."""

    model: str
    version: str
    id: str
    inputs: tuple[RequestInput, ...]
    raw_places: tuple[int, ...]
    """Indices of the inputs whose contents are raw."""
    has_lists: str
    """The name of an input with a typed list; empty: none."""
    outputs: tuple[RequestedOutput, ...]
    priority: int
    timeout_ns: Duration
    parameters: dict[str, Any]


def read_request(data: bytes) -> InferRequest:
    """Decode a ModelInferRequest."""
    cut = _split(data)
    if cut is None:
        found = _parsed(data)
        front, raws = _front_of(found), list(found.raw_input_contents)
    else:
        begin, raws = cut
        text = data[:begin]
        front = _known_front(text) if begin <= _FRONT_KEPT_BYTES else _front_of(_parsed(text))
        if begin > _FRONT_HELD_BYTES:  # views would keep the whole message alive
            raws = [bytes(one) for one in raws]
    directories = front.raw_places
    if len(raws) != len(directories):
        raise InferError(_wrong_count(front, len(raws)))
    inputs = front.inputs
    if len(inputs) == 1 and raws:  # fast path
        only = inputs[0]
        inputs = (RequestInput(only.name, only.datatype, only.shape, raws[0]),)
    elif raws:
        filled = list(inputs)
        for place, raw in zip(directories, raws, strict=True):
            filled[place] = filled[place]._replace(raw=raw)
        inputs = tuple(filled)
    return InferRequest(
        front.model,
        front.version,
        front.id,
        inputs,
        front.outputs,
        front.priority,
        front.timeout_ns,
        binary_default=True,
        parameters=front.parameters,
        final_response=bool(front.parameters.get("triton_enable_empty_final_response", False)),
    )


def _parsed(data: bytes) -> Any:
    try:
        return _Request.FromString(data)
    except (DecodeError, RecursionError) as error:
        raise InferError(f"the message is no ModelInferRequest: {error}") from None


def _split(data: bytes) -> tuple[int, list[Buffer]] | None:
    """Return where the raw contents begin, and views of them; None if they are not all at the end of the message.

    Clients repeat the part in front, which is cached. Only as much of the wire format is parsed as is needed to find
    its end: every field of the message has a tag of one byte, a length, and that many bytes.
    """
    place = 0
    size = len(data)
    front = -1
    raws: list[Buffer] = []
    view = memoryview(data)
    while place + 1 < size:
        begin = place
        tag = data[place]
        length = data[place + 1]
        place += 2
        if length & 0x80:
            length &= 0x7F
            for shift in (7, 14, 21, 28):
                if place >= size:
                    return None
                byte = data[place]
                place += 1
                length |= (byte & 0x7F) << shift
                if not byte & 0x80:
                    break
            else:
                return None
        end = place + length
        if end > size:
            return None
        if tag == _RAW_INPUT:
            if front < 0:
                front = begin
            raws.append(view[place:end])
        elif front >= 0 or tag & 7 != _LENGTH_DELIMITED or tag > _RAW_INPUT:
            return None
        place = end
    if place != size:
        return None
    return (size if front < 0 else front), raws


def _front_of(found: Any) -> _Front:
    tensors = found.inputs
    wanted = found.outputs
    if len(tensors) > TENSORS_LIMIT or len(wanted) > TENSORS_LIMIT:
        raise InferError(f"a request may have {TENSORS_LIMIT} inputs and as many outputs")
    inputs = []
    raw_places = []
    lists = ""
    for number, tensor in enumerate(tensors):
        name = tensor.name
        shape = shape_of(name, tensor.shape)
        parameters = tensor.parameters
        where = region_slice(name, _plain(parameters)) if parameters else None
        if where is not None:
            inputs.append(RequestInput(name, tensor.datatype, shape, place=where))
        elif tensor.HasField("contents"):
            lists = lists or name
            inputs.append(RequestInput(name, tensor.datatype, shape, data=_contents(tensor)))
        else:
            inputs.append(RequestInput(name, tensor.datatype, shape))
            raw_places.append(number)
    parameters = _plain(found.parameters) if found.parameters else _NONE
    priority, timeout_ns = known_parameters(parameters) if parameters else (0, 0)
    outputs = tuple(_output(one) for one in wanted)
    said = (found.model_name, found.model_version, found.id, tuple(inputs), tuple(raw_places), lists)
    return _Front(*said, outputs, priority, timeout_ns, parameters)


@functools.lru_cache(_FRONTS_KEPT)
def _known_front(text: bytes) -> _Front:
    return _front_of(_parsed(text))


def _wrong_count(front: _Front, raws: int) -> str:
    if raws and front.has_lists:
        return f"input {front.has_lists!r} has contents, expected none beside raw_input_contents"
    if raws < len(front.raw_places):
        name = front.inputs[front.raw_places[raws]].name
        return f"input {name!r} has no contents: {raws} raw ones came for {len(front.inputs)} inputs"
    return f"{raws} raw contents came, expected {len(front.raw_places)}"


def _contents(tensor: Any) -> list[Any]:
    which = _CONTENTS.get(tensor.datatype)
    if which is None:
        raise InferError(f"input {tensor.name!r} is {quoted(tensor.datatype)}, expected it in raw_input_contents")
    return list(getattr(tensor.contents, which))


def _output(wanted: Any) -> RequestedOutput:
    if not wanted.parameters:
        return RequestedOutput(wanted.name, binary=True)
    parameters = _plain(wanted.parameters)
    classes = parameters.get("classification", 0)
    if type(classes) is not int or classes < 0:
        raise InferError(f"output {wanted.name!r} has classification {quoted(classes)}, expected a whole number")
    return RequestedOutput(wanted.name, binary=True, classes=classes, place=region_slice(wanted.name, parameters))


def _plain(parameters: Any) -> dict[str, Any]:
    plain = {}
    for name, value in parameters.items():
        which = value.WhichOneof("choice")
        if which is not None:
            plain[name] = getattr(value, which)
    return plain


def write_response(
    model: str,
    version: str,
    request_id: str,
    outputs: Iterable[ResponseOutput],
    parameters: dict[str, Any] | None = None,
) -> Any:
    """Return the response as a message."""
    answer = _Response(model_name=model, model_version=version, id=request_id)
    for name, datatype, shape, array, _, place in outputs:
        tensor = answer.outputs.add(name=name, datatype=datatype.value, shape=shape)
        if place is None:
            answer.raw_output_contents.append(to_raw(datatype, array))
        else:
            tensor.parameters["shared_memory_region"].string_param = place.region
            tensor.parameters["shared_memory_offset"].int64_param = place.offset
            tensor.parameters["shared_memory_byte_size"].int64_param = place.size
    for key, value in (parameters or _NONE).items():
        set_parameter(answer.parameters[key], value)
    return answer


def write_unary_response(model: str, version: str, request_id: str, outputs: Sequence[ResponseOutput]) -> bytes:
    """Encode a response; everything except the raw contents depends on names and shapes only, and is cached.

    The fields of a protobuf message may be in any order.
    """
    shapes = []
    parts = [b""]
    if request_id:
        text = request_id.encode()
        parts += (_ID, _varint(len(text)), text)
    for name, datatype, shape, array, _, place in outputs:
        if place is not None:
            packed: bytes = write_response(model, version, request_id, outputs).SerializeToString()
            return packed
        raw = to_raw(datatype, array)
        shapes.append((name, datatype.value, shape))
        parts += (_RAW_OUTPUT, _varint(len(raw)), raw)
    parts[0] = _known_answer(model, version, tuple(shapes))
    return b"".join(parts)


@functools.lru_cache(_FRONTS_KEPT)
def _known_answer(model: str, version: str, shapes: tuple[tuple[str, str, tuple[int, ...]], ...]) -> bytes:
    answer = _Response(model_name=model, model_version=version)
    for name, datatype, shape in shapes:
        answer.outputs.add(name=name, datatype=datatype, shape=shape)
    packed: bytes = answer.SerializeToString()
    return packed


def _varint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def set_parameter(parameter: Any, value: object) -> None:
    """Set a protocol parameter from a Python value."""
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = str(value)


def write_stream_response(answer: Any) -> bytes:
    """Encode a response of a stream."""
    message: bytes = _StreamResponse(infer_response=answer).SerializeToString()
    return message


def write_stream_error(request_id: str, text: str) -> bytes:
    """Encode an error of a stream, which stays open."""
    message: bytes = _StreamResponse(error_message=text, infer_response=_Response(id=request_id)).SerializeToString()
    return message
