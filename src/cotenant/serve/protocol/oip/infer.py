"""Inference requests independent of the transport, and their validation against a model."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np

from cotenant.serve.model.event import ModelSpec
from cotenant.serve.model.tensor import ANY, Datatype, TensorSpec
from cotenant.serve.protocol.oip.tensor import NUMPY, Array, Buffer, TensorError, from_list, from_raw
from cotenant.units.instant import MICROSECOND_NS, Duration

RANK_LIMIT: Final = 32
DIMENSION_LIMIT: Final = 1 << 40
ELEMENTS_LIMIT: Final = 1 << 40
TENSORS_LIMIT: Final = 1024
_QUOTE_LIMIT: Final = 256
_CACHED_SHAPES: Final = 256
_TEXT_LIMIT: Final = 2000


class InferError(Exception):
    """A request cannot be answered. The kind determines the status code of each protocol."""

    def __init__(self, text: str, kind: str = "invalid", retry_after_ns: Duration = 0) -> None:
        """A sentence for the client; the kind is a key of the status table of each protocol."""
        super().__init__(
            text if len(text) <= _TEXT_LIMIT else text[:_TEXT_LIMIT] + "..."
        )  # clients may send names of any length
        self.kind = kind
        self.retry_after_ns = retry_after_ns


class RegionSlice(NamedTuple):
    """A range of a shared memory region."""

    region: str
    offset: int
    size: int


class RequestInput(NamedTuple):
    """An input tensor: raw bytes, a list from JSON, or a range of shared memory."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: Buffer | None = None
    data: Any = None
    location: RegionSlice | None = None
    array: Array | None = None
    """Set if the contents were decoded already."""


class RequestedOutput(NamedTuple):
    """An output that the client requests, and its form."""

    name: str
    binary: bool = False
    classes: int = 0
    """Number of the largest values to return as text (classification); zero: the tensor itself."""
    location: RegionSlice | None = None


class InferRequest(NamedTuple):
    """One inference request."""

    model: str
    version: str
    id: str
    inputs: tuple[RequestInput, ...]
    outputs: tuple[RequestedOutput, ...]
    """Empty: all outputs."""
    priority: int = 0
    timeout_ns: Duration = 0
    binary_default: bool = False
    parameters: dict[str, Any] = {}  # noqa: RUF012  never modified
    final_response: bool = False
    """Whether the client of a stream wants an empty final response."""


class CheckedRequest(NamedTuple):
    """A request that matches its model."""

    arrays: tuple[Array | RegionSlice, ...]
    """In the order of the model's inputs; ranges of shared memory are read later."""
    rows: int
    shapes: tuple[tuple[int, ...], ...]
    """Shapes without the batch; only requests with equal shapes can share a run."""


def shape_of(name: str, dims: Any) -> tuple[int, ...]:
    """Check a shape and return it as a tuple."""
    shape = tuple(dims)
    if len(shape) > RANK_LIMIT:
        raise InferError(f"tensor {name!r} has {len(shape)} dimensions, {RANK_LIMIT} are the limit")
    total = 1
    for size in shape:
        if not 0 <= size <= DIMENSION_LIMIT:
            raise InferError(f"tensor {name!r} has shape {list(shape)}: dimensions are 0 to {DIMENSION_LIMIT}")
        total *= size
    if total > ELEMENTS_LIMIT:
        raise InferError(f"tensor {name!r} has {total} elements, {ELEMENTS_LIMIT} are the limit")
    return shape


def known_parameters(parameters: dict[str, Any]) -> tuple[int, Duration]:
    """Return the priority and the timeout of a request; Triton's timeout is in microseconds."""
    if parameters.get("sequence_id"):
        text = "sequences of requests (parameter 'sequence_id') are not supported: models of this server keep no state"
        raise InferError(text, "unsupported")
    return _non_negative_integer(parameters, "priority"), _non_negative_integer(parameters, "timeout") * MICROSECOND_NS


def _non_negative_integer(parameters: dict[str, Any], name: str) -> int:
    value = parameters.get(name, 0)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        value = int(value)
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise InferError(f"parameter {name!r} is {quoted(value)}, expected a non-negative integer")
    return value


def quoted(value: object) -> str:
    """Return a client's value for a message, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= _QUOTE_LIMIT else text[:_QUOTE_LIMIT] + "..."


class InputSignature(NamedTuple):
    """Expected properties of one input, prepared for comparison."""

    spec: TensorSpec
    name: str
    datatype: str
    kind: Datatype
    shape: tuple[int, ...]
    dtype: Any
    width_bytes: int
    accepted_shapes: set[tuple[int, ...]]
    """Shapes that matched before."""


class ModelSignature(NamedTuple):
    """Expected inputs and outputs of a model's requests, prepared when the model is loaded."""

    spec: ModelSpec
    inputs: tuple[InputSignature, ...]
    outputs: frozenset[str]


def signature_of(spec: ModelSpec) -> ModelSignature:
    """Return the signature of a model."""
    inputs = tuple(
        InputSignature(tensor, tensor.name, kind.value, kind, tensor.shape, NUMPY[kind], kind.width_bytes, set())
        for tensor, kind in ((tensor, tensor.datatype) for tensor in spec.inputs)
    )
    return ModelSignature(spec, inputs, frozenset(tensor.name for tensor in spec.outputs))


def check(signature: ModelSignature, request: InferRequest) -> CheckedRequest:
    """Return the request's tensors in the model's order.

    Raise an `InferError` that names the tensor and the expected value.
    """
    spec, inputs, outputs = signature
    tensors = request.inputs
    if len(tensors) != len(inputs):
        raise InferError(_names_differ(spec, request))
    max_batch = spec.max_batch
    arrays = []
    shapes = []
    rows = -1
    for index, expected in enumerate(inputs):
        tensor = tensors[index]
        if tensor.name != expected.name:
            named_tensor = _find(expected.spec, tensors)
            if named_tensor is None:
                raise InferError(_names_differ(spec, request))
            tensor = named_tensor
        shape = tensor.shape
        if tensor.datatype != expected.datatype:
            raise InferError(_wrong_datatype(spec, tensor, expected.kind))
        if shape not in expected.accepted_shapes and not _fits(shape, expected):
            raise InferError(_wrong_shape(spec, tensor, expected.spec))
        if max_batch:
            if rows not in (-1, shape[0]):
                raise InferError(f"input {tensor.name!r} has {shape[0]} rows, expected {rows} as the one before it")
            rows = shape[0]
            if not 0 < rows <= max_batch:
                detail = f"expected 1 to {max_batch}, the largest batch of model {spec.name!r}"
                raise InferError(f"input {tensor.name!r} has {rows} rows, {detail}")
            shapes.append(shape[1:])
        else:
            shapes.append(shape)
        arrays.append(_content(tensor, expected))
    for output in request.outputs:
        if output.name not in outputs:
            names = ", ".join(repr(output_spec.name) for output_spec in spec.outputs)
            raise InferError(f"output {quoted(output.name)} is not an output of model {spec.name!r}, expected {names}")
    return CheckedRequest(tuple(arrays), rows if max_batch else 1, tuple(shapes))


def _fits(shape: tuple[int, ...], expected: InputSignature) -> bool:
    if not expected.spec.takes(shape):
        return False
    if len(expected.accepted_shapes) < _CACHED_SHAPES:
        expected.accepted_shapes.add(shape)
    return True


def _find(tensor_spec: TensorSpec, tensors: tuple[RequestInput, ...]) -> RequestInput | None:
    return next((tensor for tensor in tensors if tensor.name == tensor_spec.name), None)


def _content(tensor: RequestInput, expected: InputSignature) -> Array | RegionSlice:
    raw = tensor.raw
    if tensor.array is not None:
        return tensor.array
    try:
        if raw is not None:
            width = expected.width_bytes
            if width and len(raw) == math.prod(tensor.shape) * width:
                return np.frombuffer(raw, expected.dtype).reshape(tensor.shape)
            return from_raw(expected.kind, tensor.shape, raw)  # strings, or raises an error that describes the mismatch
        if tensor.location is not None:
            return tensor.location
        return from_list(expected.kind, tensor.shape, tensor.data)
    except TensorError as error:
        raise InferError(f"input {tensor.name!r}: {error}") from None


def _wrong_datatype(spec: ModelSpec, tensor: RequestInput, datatype: Datatype) -> str:
    return f"input {tensor.name!r} of model {spec.name!r} is {quoted(tensor.datatype)}, expected {datatype.value}"


def _wrong_shape(spec: ModelSpec, tensor: RequestInput, expected: TensorSpec) -> str:
    free = f", where {ANY} is any" if ANY in expected.shape else ""
    problem = f"input {tensor.name!r} of model {spec.name!r} has shape {list(tensor.shape)}"
    return f"{problem}, expected {list(expected.shape)}{free}"


def _names_differ(spec: ModelSpec, request: InferRequest) -> str:
    expected = [tensor.name for tensor in spec.inputs]
    names = [tensor.name for tensor in request.inputs]
    if missing := [name for name in expected if name not in names]:
        return f"input {missing[0]!r} of model {spec.name!r} is missing, expected {', '.join(map(repr, expected))}"
    unexpected = next((name for name in names if name not in expected or names.count(name) > 1), "")
    problem = f"input {quoted(unexpected)} is unknown to model {spec.name!r} or was sent twice"
    return f"{problem}, expected {', '.join(map(repr, expected))}"
