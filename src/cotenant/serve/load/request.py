"""Inference requests of the load generator, encoded once and sent many times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from cotenant.errors import ConfigError
from cotenant.serve.model.tensor import ANY, Datatype, TensorSpec, elements
from cotenant.serve.protocol.oip.tensor import NUMPY

_GOLDEN: Final = 0.6180339887498949
_TEXT: Final = b"cotenant"


class TensorMetadata(msgspec.Struct):
    """A tensor as the server describes it."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]


class ModelMetadata(msgspec.Struct):
    """The inputs and outputs of a model as the server describes them."""

    inputs: tuple[TensorMetadata, ...] = ()
    outputs: tuple[TensorMetadata, ...] = ()


class InputTensor(msgspec.Struct, frozen=True):
    """A tensor with its contents."""

    spec: TensorSpec
    raw: bytes


class InferenceRequest(msgspec.Struct, frozen=True):
    """An inference request, independent of the protocol."""

    model: str
    inputs: tuple[InputTensor, ...]
    outputs: tuple[str, ...]
    timeout_us: int = 0
    """Time after which the client has no use for a response; zero: not sent."""
    priority: int = 0


def synthetic_request(
    model: str, metadata: ModelMetadata, rows: int, shapes: Mapping[str, Sequence[int]], timeout_us: int = 0
) -> InferenceRequest:
    """Build a request whose inputs have this many rows where the model allows it."""
    inputs = []
    for tensor in metadata.inputs:
        spec = TensorSpec(tensor.name, tensor.datatype, _shape(tensor, rows, shapes.get(tensor.name, ())))
        inputs.append(InputTensor(spec, content(tensor.datatype, spec.shape)))
    return InferenceRequest(model, tuple(inputs), tuple(output.name for output in metadata.outputs), timeout_us)


def _shape(tensor: TensorMetadata, rows: int, configured: Sequence[int]) -> tuple[int, ...]:
    """Return the shape with the given free dimensions; an input of another model may have the same name."""
    shape = list(tensor.shape)
    if shape[:1] == [ANY]:
        shape[0] = rows
    if configured and ANY in shape:
        begin = len(shape) - len(configured)
        if begin not in (0, 1) or any(
            size not in (ANY, configured_size) for size, configured_size in zip(shape[begin:], configured, strict=True)
        ):
            raise ConfigError("--shape", f"{tensor.name}:{list(configured)}", f"the model has {list(tensor.shape)}")
        shape[begin:] = configured
    if ANY in shape:
        example = ",".join("8" if dim == ANY else str(dim) for dim in tensor.shape[1:])
        remedy = f"input {tensor.name!r} has a free dimension: set it with --shape {tensor.name}:{example}"
        raise ConfigError("--shape", shape, remedy)
    return tuple(shape)


def content(datatype: Datatype, shape: tuple[int, ...]) -> bytes:
    """Return deterministic contents: fractions between -1 and 1, or small integers (valid vocabulary indices)."""
    count = elements(shape)
    if datatype is Datatype.BYTES:
        return (len(_TEXT).to_bytes(4, "little") + _TEXT) * count
    positions = np.arange(count)
    if datatype is Datatype.BF16:
        return bytes((np.modf(positions * _GOLDEN)[0].astype("<f4").view("<u4") >> 16).astype("<u2").tobytes())
    if datatype in (Datatype.FP16, Datatype.FP32, Datatype.FP64):
        return bytes((np.modf(positions * _GOLDEN)[0] * 2 - 1).astype(NUMPY[datatype]).tobytes())
    return (positions % (2 if datatype is Datatype.BOOL else 10)).astype(NUMPY[datatype]).tobytes()


def http_request(request: InferenceRequest, authority: str) -> bytes:
    """Encode an HTTP request with binary inputs that asks for binary outputs."""
    inputs = [
        {
            "name": tensor.spec.name,
            "datatype": tensor.spec.datatype.value,
            "shape": tensor.spec.shape,
            "parameters": {"binary_data_size": len(tensor.raw)},
        }
        for tensor in request.inputs
    ]
    tree: dict[str, Any] = {"inputs": inputs}
    tree["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in request.outputs]
    parameters = {name: value for name, value in parameters_of(request).items() if value}
    if parameters:
        tree["parameters"] = parameters
    front = msgspec.json.encode(tree)
    tensors = b"".join(tensor.raw for tensor in request.inputs)
    lines = (
        f"POST /v2/models/{request.model}/infer HTTP/1.1",
        f"Host: {authority}",
        f"Inference-Header-Content-Length: {len(front)}",
        "Content-Type: application/octet-stream",
        f"Content-Length: {len(front) + len(tensors)}",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + front + tensors


def parameters_of(request: InferenceRequest) -> dict[str, int]:
    """Return the parameters of a request; zero if not set."""
    return {"timeout": request.timeout_us, "priority": request.priority}
