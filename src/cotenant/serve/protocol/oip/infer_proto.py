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
_CACHED_HEADER_BYTES: Final = 1024
_CACHED_HEADERS: Final = 1024
_HELD_HEADER_BYTES: Final = 64 << 10
_LENGTH_DELIMITED: Final = 2
_FIELDS_LIMIT: Final = 4 * TENSORS_LIMIT
"""A valid request has fewer fields: inputs, outputs, raw contents and parameters."""
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
        raise InferError(f"the message is not a valid {name}: {error}") from None


class _RequestHeader(NamedTuple):
    """A decoded request without its raw contents."""

    model: str
    version: str
    id: str
    inputs: tuple[RequestInput, ...]
    raw_indices: tuple[int, ...]
    """Indices of the inputs whose contents are raw."""
    input_with_list: str
    """The name of an input with a typed list; empty: none."""
    outputs: tuple[RequestedOutput, ...]
    priority: int
    timeout_ns: Duration
    parameters: dict[str, Any]


def read_request(data: bytes) -> InferRequest:
    """Decode a ModelInferRequest."""
    parts = _split(data)
    if parts is None:
        message = _parse_request(data)
        header, raws = _header_of(message), list(message.raw_input_contents)
    else:
        begin, raws = parts
        text = data[:begin]
        header = _cached_header(text) if begin <= _CACHED_HEADER_BYTES else _header_of(_parse_request(text))
        if begin > _HELD_HEADER_BYTES:  # views would keep the whole message alive
            raws = [bytes(raw) for raw in raws]
    indices = header.raw_indices
    if len(raws) != len(indices):
        raise InferError(_wrong_count(header, len(raws)))
    inputs = header.inputs
    if len(inputs) == 1 and raws:  # fast path
        tensor = inputs[0]
        inputs = (RequestInput(tensor.name, tensor.datatype, tensor.shape, raws[0]),)
    elif raws:
        filled = list(inputs)
        for index, raw in zip(indices, raws, strict=True):
            filled[index] = filled[index]._replace(raw=raw)
        inputs = tuple(filled)
    return InferRequest(
        header.model,
        header.version,
        header.id,
        inputs,
        header.outputs,
        header.priority,
        header.timeout_ns,
        binary_default=True,
        parameters=header.parameters,
        final_response=bool(header.parameters.get("triton_enable_empty_final_response", False)),
    )


def _parse_request(data: bytes) -> Any:
    try:
        return _Request.FromString(data)
    except (DecodeError, RecursionError) as error:
        raise InferError(f"the message is not a valid ModelInferRequest: {error}") from None


def header_bytes(data: bytes) -> int:
    """Return the size of a message without its raw contents."""
    parts = _split(data)
    return len(data) if parts is None else parts[0]


def _split(data: bytes) -> tuple[int, list[Buffer]] | None:
    """Return where the raw contents begin, and views of them; None if they are not all at the end of the message.

    Clients repeat the part in front, which is cached. Only as much of the wire format is parsed as is needed to find
    its end: every field of the message has a tag of one byte, a length, and that many bytes.
    """
    position = 0
    size = len(data)
    header_end = -1
    fields = 0
    raws: list[Buffer] = []
    view = memoryview(data)
    while position + 1 < size:
        begin = position
        tag = data[position]
        length = data[position + 1]
        position += 2
        if length & 0x80:
            length &= 0x7F
            for shift in (7, 14, 21, 28):
                if position >= size:
                    return None
                byte = data[position]
                position += 1
                length |= (byte & 0x7F) << shift
                if not byte & 0x80:
                    break
            else:
                return None
        end = position + length
        fields += 1
        if end > size or fields > _FIELDS_LIMIT:
            return None
        if tag == _RAW_INPUT:
            if header_end < 0:
                header_end = begin
            raws.append(view[position:end])
        elif header_end >= 0 or tag & 7 != _LENGTH_DELIMITED or tag > _RAW_INPUT:
            return None
        position = end
    if position != size:
        return None
    return (size if header_end < 0 else header_end), raws


def _header_of(message: Any) -> _RequestHeader:
    tensors = message.inputs
    requested = message.outputs
    if len(tensors) > TENSORS_LIMIT or len(requested) > TENSORS_LIMIT:
        raise InferError(f"a request may have at most {TENSORS_LIMIT} inputs and {TENSORS_LIMIT} outputs")
    inputs = []
    raw_indices = []
    with_list = ""
    for index, tensor in enumerate(tensors):
        name = tensor.name
        shape = shape_of(name, tensor.shape)
        parameters = tensor.parameters
        location = region_slice(name, _parameter_values(parameters)) if parameters else None
        if location is not None:
            inputs.append(RequestInput(name, tensor.datatype, shape, location=location))
        elif tensor.HasField("contents"):
            with_list = with_list or name
            inputs.append(RequestInput(name, tensor.datatype, shape, data=_contents(tensor)))
        else:
            inputs.append(RequestInput(name, tensor.datatype, shape))
            raw_indices.append(index)
    parameters = _parameter_values(message.parameters) if message.parameters else _NONE
    priority, timeout_ns = known_parameters(parameters) if parameters else (0, 0)
    outputs = tuple(_output(output) for output in requested)
    fields = (message.model_name, message.model_version, message.id, tuple(inputs), tuple(raw_indices), with_list)
    return _RequestHeader(*fields, outputs, priority, timeout_ns, parameters)


@functools.lru_cache(_CACHED_HEADERS)
def _cached_header(text: bytes) -> _RequestHeader:
    return _header_of(_parse_request(text))


def _wrong_count(header: _RequestHeader, raws: int) -> str:
    if raws and header.input_with_list:
        return f"input {header.input_with_list!r} has contents, expected none together with raw_input_contents"
    if raws < len(header.raw_indices):
        name = header.inputs[header.raw_indices[raws]].name
        return f"input {name!r} has no contents: {raws} raw contents were sent for {len(header.inputs)} inputs"
    return f"{raws} raw contents were sent, expected {len(header.raw_indices)}"


def _contents(tensor: Any) -> list[Any]:
    field = _CONTENTS.get(tensor.datatype)
    if field is None:
        raise InferError(f"input {tensor.name!r} is {quoted(tensor.datatype)}, expected it in raw_input_contents")
    return list(getattr(tensor.contents, field))


def _output(output: Any) -> RequestedOutput:
    if not output.parameters:
        return RequestedOutput(output.name, binary=True)
    parameters = _parameter_values(output.parameters)
    classes = parameters.get("classification", 0)
    if type(classes) is not int or classes < 0:
        raise InferError(
            f"output {output.name!r} has classification {quoted(classes)}, expected a non-negative integer"
        )
    return RequestedOutput(output.name, binary=True, classes=classes, location=region_slice(output.name, parameters))


def _parameter_values(parameters: Any) -> dict[str, Any]:
    plain = {}
    for name, value in parameters.items():
        field = value.WhichOneof("choice")
        if field is not None:
            plain[name] = getattr(value, field)
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
    for name, datatype, shape, array, _, location in outputs:
        tensor = answer.outputs.add(name=name, datatype=datatype.value, shape=shape)
        if location is None:
            answer.raw_output_contents.append(to_raw(datatype, array))
        else:
            tensor.parameters["shared_memory_region"].string_param = location.region
            tensor.parameters["shared_memory_offset"].int64_param = location.offset
            tensor.parameters["shared_memory_byte_size"].int64_param = location.size
            answer.raw_output_contents.append(b"")  # as from Triton: NVIDIA's C++ client expects one for each output
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
    for name, datatype, shape, array, _, location in outputs:
        if location is not None:
            packed: bytes = write_response(model, version, request_id, outputs).SerializeToString()
            return packed
        raw = to_raw(datatype, array)
        shapes.append((name, datatype.value, shape))
        parts += (_RAW_OUTPUT, _varint(len(raw)), raw)
    parts[0] = _cached_response_header(model, version, tuple(shapes))
    return b"".join(parts)


@functools.lru_cache(_CACHED_HEADERS)
def _cached_response_header(model: str, version: str, shapes: tuple[tuple[str, str, tuple[int, ...]], ...]) -> bytes:
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
