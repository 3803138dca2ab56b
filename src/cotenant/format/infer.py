"""What does an inference request ask, whichever way it came? And does it fit the model?"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from cotenant.domain.instant import MICROSECOND_NS, Duration
from cotenant.domain.serving import ModelSpec
from cotenant.domain.tensor import ANY, Datatype, TensorSpec
from cotenant.format.tensor import Array, Buffer, TensorError, from_list, from_raw

RANK_LIMIT: Final = 32
DIMENSION_LIMIT: Final = 1 << 40
ELEMENTS_LIMIT: Final = 1 << 40
TENSORS_LIMIT: Final = 1024
_DATATYPES: Final = {one.value: one for one in Datatype}
_WORD_LIMIT: Final = 256


class InferError(Exception):
    """The client must act: what it asked cannot be. The kind chooses the status of each protocol."""

    def __init__(self, text: str, kind: str = "invalid") -> None:
        """A sentence for the client; kinds are invalid, not-found, unavailable, exhausted, late, unsupported, fault."""
        super().__init__(text)
        self.kind = kind
        self.retry_after_ns: Duration = 0


class Place(NamedTuple):
    """A stretch of a shared-memory region."""

    region: str
    offset: int
    size: int


class GivenInput(NamedTuple):
    """A tensor of a request: its content raw, as a list from JSON, or in shared memory."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: Buffer | None = None
    data: Any = None
    place: Place | None = None


class WantedOutput(NamedTuple):
    """A tensor that the sender wants, and how."""

    name: str
    binary: bool = False
    classes: int = 0
    """So many of the largest values, as text; zero: the tensor itself."""
    place: Place | None = None


class InferRequest(NamedTuple):
    """One request, as any of the protocols says it."""

    model: str
    version: str
    id: str
    inputs: tuple[GivenInput, ...]
    outputs: tuple[WantedOutput, ...]
    """Empty: all of them."""
    priority: int = 0
    timeout_ns: Duration = 0
    binary_default: bool = False
    parameters: dict[str, Any] = {}  # noqa: RUF012  never written to
    final_response: bool = False
    """Of a stream: whether the sender wants to be told of the end of its responses."""


class Checked(NamedTuple):
    """A request that fits its model."""

    arrays: tuple[Array | Place, ...]
    """In the order of the model's inputs; one in shared memory is read when it runs."""
    rows: int
    shapes: int


def shape_of(name: str, dims: Any) -> tuple[int, ...]:
    """A shape that can be reckoned with."""
    shape = tuple(dims)
    if len(shape) > RANK_LIMIT:
        raise InferError(f"tensor {name!r} has {len(shape)} dimensions, {RANK_LIMIT} are the limit")
    total = 1
    for one in shape:
        if not 0 <= one <= DIMENSION_LIMIT:
            raise InferError(f"tensor {name!r} has shape {list(shape)}: dimensions are 0 to {DIMENSION_LIMIT}")
        total *= one
    if total > ELEMENTS_LIMIT:
        raise InferError(f"tensor {name!r} has {total} elements, {ELEMENTS_LIMIT} are the limit")
    return shape


def known_parameters(parameters: dict[str, Any]) -> tuple[int, Duration]:
    """The priority and the timeout of a request; Triton counts the timeout in microseconds."""
    return _whole(parameters, "priority"), _whole(parameters, "timeout") * MICROSECOND_NS


def _whole(parameters: dict[str, Any], name: str) -> int:
    value = parameters.get(name, 0)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        value = int(value)
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise InferError(f"parameter {name!r} is {shown(value)}, expected a whole number that is not negative")
    return value


def shown(value: object) -> str:
    """A value of a client in a sentence, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _WORD_LIMIT else text[:_WORD_LIMIT] + "..."


def check(spec: ModelSpec, request: InferRequest) -> Checked:
    """The request's tensors as the model takes them, or an `InferError` that names the tensor and what was expected."""
    given = request.inputs
    wanted = spec.inputs
    if len(given) != len(wanted):
        raise InferError(_names_differ(spec, request))
    arrays = []
    shapes = []
    rows = -1
    for tensor_spec in wanted:
        tensor = _find(tensor_spec, given)
        if tensor is None:
            raise InferError(_names_differ(spec, request))
        shape = tensor.shape
        datatype = tensor_spec.datatype
        if tensor.datatype != datatype.value:
            raise InferError(_wrong_datatype(spec, tensor, datatype))
        if not tensor_spec.takes(shape):
            raise InferError(_wrong_shape(spec, tensor, tensor_spec))
        if spec.max_batch:
            if rows not in (-1, shape[0]):
                raise InferError(f"input {tensor.name!r} has {shape[0]} rows, expected {rows} as the one before it")
            rows = shape[0]
            if not 0 < rows <= spec.max_batch:
                detail = f"expected 1 to {spec.max_batch}, the largest batch of model {spec.name!r}"
                raise InferError(f"input {tensor.name!r} has {rows} rows, {detail}")
            shape = shape[1:]
        shapes.append(shape)
        arrays.append(_content(tensor, datatype))
    for output in request.outputs:
        if not any(output.name == one.name for one in spec.outputs):
            names = ", ".join(repr(one.name) for one in spec.outputs)
            raise InferError(f"output {shown(output.name)} is none of model {spec.name!r}, expected {names}")
    return Checked(tuple(arrays), rows if spec.max_batch else 1, hash(tuple(shapes)))


def _find(tensor_spec: TensorSpec, given: tuple[GivenInput, ...]) -> GivenInput | None:
    return next((one for one in given if one.name == tensor_spec.name), None)


def _content(tensor: GivenInput, datatype: Datatype) -> Array | Place:
    try:
        if tensor.raw is not None:
            return from_raw(datatype, tensor.shape, tensor.raw)
        if tensor.place is not None:
            return tensor.place
        return from_list(datatype, tensor.shape, tensor.data)
    except TensorError as error:
        raise InferError(f"input {tensor.name!r}: {error}") from None


def datatype_named(name: str, tensor: str) -> Datatype:
    """The datatype that a tensor says it is of."""
    known = _DATATYPES.get(name)
    if known is None:
        raise InferError(f"tensor {tensor!r} has datatype {shown(name)}, expected one of {', '.join(_DATATYPES)}")
    return known


def _wrong_datatype(spec: ModelSpec, tensor: GivenInput, datatype: Datatype) -> str:
    return f"input {tensor.name!r} of model {spec.name!r} is {shown(tensor.datatype)}, expected {datatype.value}"


def _wrong_shape(spec: ModelSpec, tensor: GivenInput, wanted: TensorSpec) -> str:
    free = f", where {ANY} is any" if ANY in wanted.shape else ""
    said = f"input {tensor.name!r} of model {spec.name!r} has shape {list(tensor.shape)}"
    return f"{said}, expected {list(wanted.shape)}{free}"


def _names_differ(spec: ModelSpec, request: InferRequest) -> str:
    wanted = [one.name for one in spec.inputs]
    given = [one.name for one in request.inputs]
    if missing := [name for name in wanted if name not in given]:
        return f"input {missing[0]!r} of model {spec.name!r} is missing, expected {', '.join(map(repr, wanted))}"
    odd = next((name for name in given if name not in wanted or given.count(name) > 1), "")
    return (
        f"input {shown(odd)} is none of model {spec.name!r} or is there twice, expected {', '.join(map(repr, wanted))}"
    )
