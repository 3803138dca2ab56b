"""How does an inference request look over gRPC? A message whose tensors are raw, typed lists, or in shared memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from google.protobuf.message import DecodeError

from cotenant.domain.tensor import Datatype
from cotenant.format.infer import (
    TENSORS_LIMIT,
    GivenInput,
    InferError,
    InferRequest,
    WantedOutput,
    known_parameters,
    shape_of,
    shown,
)
from cotenant.format.infer_json import Output, place_in
from cotenant.format.proto import TYPES
from cotenant.format.tensor import to_raw

_Request: Final = TYPES["ModelInferRequest"]
_Response: Final = TYPES["ModelInferResponse"]
_StreamResponse: Final = TYPES["ModelStreamInferResponse"]
_NONE: Final[dict[str, Any]] = {}

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
"""Which list holds which datatype; FP16 and BF16 have none and come raw."""


def read_message(name: str, data: bytes) -> Any:
    """A message of that name, or an `InferError`."""
    try:
        return TYPES[name].FromString(data)
    except (DecodeError, RecursionError) as error:
        raise InferError(f"the message is no {name}: {error}") from None


def read_request(data: bytes) -> InferRequest:
    """The request in a message."""
    try:
        found = _Request.FromString(data)
    except (DecodeError, RecursionError) as error:
        raise InferError(f"the message is no ModelInferRequest: {error}") from None
    raws = found.raw_input_contents
    tensors = found.inputs
    wanted = found.outputs
    if len(tensors) > TENSORS_LIMIT or len(wanted) > TENSORS_LIMIT:
        raise InferError(f"a request may have {TENSORS_LIMIT} inputs and as many outputs")
    inputs = []
    place = 0
    for tensor in tensors:
        name = tensor.name
        shape = shape_of(name, tensor.shape)
        parameters = tensor.parameters
        where = place_in(name, _plain(parameters)) if parameters else None
        if where is not None:
            inputs.append(GivenInput(name, tensor.datatype, shape, place=where))
        elif tensor.HasField("contents"):
            if raws:
                raise InferError(f"input {name!r} has contents, expected none beside raw_input_contents")
            inputs.append(GivenInput(name, tensor.datatype, shape, data=_contents(tensor)))
        else:
            if place >= len(raws):
                raise InferError(f"input {name!r} has no contents: {len(raws)} raw ones came for {len(tensors)} inputs")
            inputs.append(GivenInput(name, tensor.datatype, shape, raws[place]))
            place += 1
    if place != len(raws):
        raise InferError(f"{len(raws)} raw contents came, expected {place}")
    parameters = _plain(found.parameters) if found.parameters else _NONE
    priority, timeout_ns = known_parameters(parameters) if parameters else (0, 0)
    outputs = tuple(_output(one) for one in wanted)
    final = bool(parameters.get("triton_enable_empty_final_response", False))
    return InferRequest(
        found.model_name,
        found.model_version,
        found.id,
        tuple(inputs),
        outputs,
        priority,
        timeout_ns,
        binary_default=True,
        parameters=parameters,
        final_response=final,
    )


def _contents(tensor: Any) -> list[Any]:
    which = _CONTENTS.get(tensor.datatype)
    if which is None:
        raise InferError(f"input {tensor.name!r} is {shown(tensor.datatype)}, expected it in raw_input_contents")
    return list(getattr(tensor.contents, which))


def _output(wanted: Any) -> WantedOutput:
    if not wanted.parameters:
        return WantedOutput(wanted.name, binary=True)
    parameters = _plain(wanted.parameters)
    classes = parameters.get("classification", 0)
    if type(classes) is not int or classes < 0:
        raise InferError(f"output {wanted.name!r} has classification {shown(classes)}, expected a whole number")
    return WantedOutput(wanted.name, binary=True, classes=classes, place=place_in(wanted.name, parameters))


def _plain(parameters: Any) -> dict[str, Any]:
    plain = {}
    for name, value in parameters.items():
        which = value.WhichOneof("choice")
        if which is not None:
            plain[name] = getattr(value, which)
    return plain


def write_answer(
    model: str, version: str, request_id: str, outputs: Iterable[Output], parameters: dict[str, Any] | None = None
) -> Any:
    """The answer to a request, as a message."""
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


def set_parameter(parameter: Any, value: object) -> None:
    """A value of Python as a parameter of the protocol."""
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = str(value)


def write_stream_answer(answer: Any) -> bytes:
    """An answer as it goes into a stream."""
    message: bytes = _StreamResponse(infer_response=answer).SerializeToString()
    return message


def write_stream_error(request_id: str, text: str) -> bytes:
    """An error as it goes into a stream, which goes on."""
    message: bytes = _StreamResponse(error_message=text, infer_response=_Response(id=request_id)).SerializeToString()
    return message
