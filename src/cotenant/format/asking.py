"""How does a client ask a model? A request with made-up tensors, as bytes that are written once and sent often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from cotenant.domain.tensor import ANY, Datatype, TensorSpec, elements
from cotenant.errors import ConfigError
from cotenant.format.tensor import NUMPY

_GOLDEN: Final = 0.6180339887498949
_TEXT: Final = b"cotenant"


class TensorSaid(msgspec.Struct):
    """A tensor as a server names it."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]


class Described(msgspec.Struct):
    """What a server tells of a model, as far as one needs it to ask."""

    inputs: tuple[TensorSaid, ...] = ()
    outputs: tuple[TensorSaid, ...] = ()


class Given(msgspec.Struct, frozen=True):
    """A tensor with its content."""

    spec: TensorSpec
    raw: bytes


class Asked(msgspec.Struct, frozen=True):
    """What a request says, whichever way it is sent."""

    model: str
    inputs: tuple[Given, ...]
    outputs: tuple[str, ...]
    timeout_us: int = 0
    """After which an answer is of no use to its sender; zero: it does not say."""
    priority: int = 0


def made_up(
    model: str, described: Described, rows: int, shapes: Mapping[str, Sequence[int]], timeout_us: int = 0
) -> Asked:
    """A request whose inputs have that many rows, where the model lets its sender choose."""
    inputs = []
    for one in described.inputs:
        spec = TensorSpec(one.name, one.datatype, _shape(one, rows, shapes.get(one.name, ())))
        inputs.append(Given(spec, content(one.datatype, spec.shape)))
    return Asked(model, tuple(inputs), tuple(one.name for one in described.outputs), timeout_us)


def _shape(one: TensorSaid, rows: int, said: Sequence[int]) -> tuple[int, ...]:
    """With what was said for its free dimensions; an input that has none, of another model, may have the same name."""
    shape = list(one.shape)
    if shape[:1] == [ANY]:
        shape[0] = rows
    if said and ANY in shape:
        begin = len(shape) - len(said)
        if begin not in (0, 1) or any(
            mine not in (ANY, asked) for mine, asked in zip(shape[begin:], said, strict=True)
        ):
            raise ConfigError("--shape", f"{one.name}:{list(said)}", f"the model has {list(one.shape)}")
        shape[begin:] = said
    if ANY in shape:
        example = ",".join("8" if dim == ANY else str(dim) for dim in one.shape[1:])
        remedy = f"input {one.name!r} is free there: choose, as --shape {one.name}:{example}"
        raise ConfigError("--shape", shape, remedy)
    return tuple(shape)


def content(datatype: Datatype, shape: tuple[int, ...]) -> bytes:
    """The same elements for the same shape: fractions between -1 and 1, small whole numbers (a vocabulary has them)."""
    count = elements(shape)
    if datatype is Datatype.BYTES:
        return (len(_TEXT).to_bytes(4, "little") + _TEXT) * count
    places = np.arange(count)
    if datatype is Datatype.BF16:
        return bytes((np.modf(places * _GOLDEN)[0].astype("<f4").view("<u4") >> 16).astype("<u2").tobytes())
    if datatype in (Datatype.FP16, Datatype.FP32, Datatype.FP64):
        return bytes((np.modf(places * _GOLDEN)[0] * 2 - 1).astype(NUMPY[datatype]).tobytes())
    return (places % (2 if datatype is Datatype.BOOL else 10)).astype(NUMPY[datatype]).tobytes()


def http_request(asked: Asked, authority: str) -> bytes:
    """A whole request with binary tensors, which asks for its outputs in binary too."""
    inputs = [
        {
            "name": one.spec.name,
            "datatype": one.spec.datatype.value,
            "shape": one.spec.shape,
            "parameters": {"binary_data_size": len(one.raw)},
        }
        for one in asked.inputs
    ]
    said: dict[str, Any] = {"inputs": inputs}
    said["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in asked.outputs]
    parameters = {name: value for name, value in parameters_of(asked).items() if value}
    if parameters:
        said["parameters"] = parameters
    front = msgspec.json.encode(said)
    tensors = b"".join(one.raw for one in asked.inputs)
    lines = (
        f"POST /v2/models/{asked.model}/infer HTTP/1.1",
        f"Host: {authority}",
        f"Inference-Header-Content-Length: {len(front)}",
        "Content-Type: application/octet-stream",
        f"Content-Length: {len(front) + len(tensors)}",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + front + tensors


def parameters_of(asked: Asked) -> dict[str, int]:
    """What a request says beside its tensors; zero where it does not."""
    return {"timeout": asked.timeout_us, "priority": asked.priority}
