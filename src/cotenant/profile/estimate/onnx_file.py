"""Reader of ONNX files: the graph, the shapes of its weights, and the values of small integer constants.

Field numbers are those of onnx.proto (https://github.com/onnx/onnx). No other package is needed.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from cotenant.errors import ConfigError
from cotenant.profile.estimate.protobuf import fields, floats, integers, message, text

Dimension: TypeAlias = int | str | None
"""A size, the name of a size, or unknown."""

_VALUE_LIMIT: Final = 1 << 16
"""Largest number of elements of a constant whose values are kept: enough for shapes, axes and indices."""
_TYPES: Final = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    16: "bfloat16",
    17: "float8",
    18: "float8",
    19: "float8",
    20: "float8",
}
_ITEM_BYTES: Final = {"bfloat16": 2, "float8": 1}
_REMEDY: Final = "it cannot be read as ONNX; export the model again"


class Constant(msgspec.Struct, frozen=True):
    """A weight or a constant of the graph; `value` is present if it is small."""

    shape: tuple[int, ...]
    type: str
    value: Any = None


class AttributeReference(msgspec.Struct, frozen=True):
    """An attribute of a node in a function: its value is that of the call."""

    name: str


class Node(msgspec.Struct, frozen=True):
    """One operator call of the graph. An attribute that contains a graph is a `Model`."""

    type: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    domain: str = ""


class GraphValue(msgspec.Struct, frozen=True):
    """An input, output or intermediate tensor as the file declares it."""

    name: str
    type: str
    shape: tuple[Dimension, ...] | None


class Model(msgspec.Struct, frozen=True):
    """A model: its nodes in order of execution, and what the file declares about its tensors."""

    nodes: tuple[Node, ...]
    inputs: tuple[GraphValue, ...]
    outputs: tuple[str, ...]
    constants: dict[str, Constant]
    declared: dict[str, GraphValue]
    opset: int = 0
    functions: dict[tuple[str, str], Function] = {}
    """Functions of the file by domain and name."""


class Function(msgspec.Struct, frozen=True):
    """A function of the file: nodes that a call of it stands for."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    defaults: dict[str, Any]


def item_bytes(type_name: str) -> int:
    """Return the size of one element of a type."""
    return _ITEM_BYTES.get(type_name) or int(np.dtype(type_name).itemsize)


def read_onnx(path: Path) -> Model:
    """Return the model of a file; raise `ConfigError` if it is none."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            view = memoryview(mapped)
            try:
                return _model(view)
            finally:
                view.release()
    except BufferError:  # views of the file are left in the frames of an error, which closing it replaces
        raise ConfigError("FILE", str(path), _REMEDY) from None
    except (ValueError, RecursionError, TypeError) as error:
        raise ConfigError("FILE", str(path), f"{_REMEDY} ({error})") from None
    except OSError as error:
        raise ConfigError("FILE", str(path), f"it cannot be read: {error.strerror}") from None


def _model(data: memoryview) -> Model:
    graph: memoryview | None = None
    opset = 0
    functions: dict[tuple[str, str], Function] = {}
    for number, value in fields(data):
        if number == 7:
            graph = message(value)
        elif number == 25:
            key, function = _function(message(value))
            functions[key] = function
        elif number == 8:
            domain, version = "", 0
            for inner, field in fields(message(value)):
                if inner == 1:
                    domain = text(field)
                elif inner == 2:
                    version = integers(field)[0]
            if domain in {"", "ai.onnx"}:
                opset = version
    if graph is None:
        raise ValueError("it has no graph")
    model = _graph(graph, opset)
    if not model.nodes:
        raise ValueError("its graph has no operator")
    return msgspec.structs.replace(model, functions=functions)


def _function(data: memoryview) -> tuple[tuple[str, str], Function]:
    name = domain = ""
    inputs: list[str] = []
    outputs: list[str] = []
    nodes: list[Node] = []
    defaults: dict[str, Any] = {}
    for number, value in fields(data):
        if number == 1:
            name = text(value)
        elif number == 4:
            inputs.append(text(value))
        elif number == 5:
            outputs.append(text(value))
        elif number == 7:
            nodes.append(_node(message(value), len(nodes)))
        elif number == 10:
            domain = text(value)
        elif number == 11:
            key, content = _attribute(message(value))
            defaults[key] = content
    return (domain, name), Function(tuple(inputs), tuple(outputs), tuple(nodes), defaults)


def _graph(data: memoryview, opset: int) -> Model:
    nodes: list[Node] = []
    constants: dict[str, Constant] = {}
    inputs: list[GraphValue] = []
    outputs: list[str] = []
    declared: dict[str, GraphValue] = {}
    for number, value in fields(data):
        if number == 1:
            nodes.append(_node(message(value), len(nodes)))
        elif number == 5:
            name, constant = _tensor(message(value))
            constants[name] = constant
        elif number in {11, 12, 13}:
            known = _value(message(value))
            declared[known.name] = known
            if number == 11:
                inputs.append(known)
            elif number == 12:
                outputs.append(known.name)
    real = tuple(value for value in inputs if value.name not in constants)
    return Model(tuple(nodes), real, tuple(outputs), constants, declared, opset)


def _node(data: memoryview, index: int) -> Node:
    inputs: list[str] = []
    outputs: list[str] = []
    name = kind = domain = ""
    attributes: dict[str, Any] = {}
    for number, value in fields(data):
        if number == 1:
            inputs.append(text(value))
        elif number == 2:
            outputs.append(text(value))
        elif number == 3:
            name = text(value)
        elif number == 4:
            kind = text(value)
        elif number == 5:
            key, content = _attribute(message(value))
            attributes[key] = content
        elif number == 7:
            domain = text(value)
    domain = "" if domain == "ai.onnx" else domain
    return Node(kind, name or f"{kind}_{index}", tuple(inputs), tuple(outputs), attributes, domain)


def _attribute(data: memoryview) -> tuple[str, Any]:
    name = ""
    content: Any = None
    ints: list[int] = []
    many: list[float] = []
    strings: list[str] = []
    for number, value in fields(data):
        if number == 1:
            name = text(value)
        elif number == 2:
            content = floats(value)[0]
        elif number == 3:
            content = integers(value)[0]
        elif number == 4:
            content = text(value)
        elif number == 5:
            content = _tensor(message(value))[1]
        elif number == 6:
            content = _graph(message(value), 0)
        elif number == 21:
            content = AttributeReference(text(value))
        elif number == 7:
            many += floats(value)
        elif number == 8:
            ints += integers(value)
        elif number == 9:
            strings.append(text(value))
    return name, content if content is not None else ints or many or strings


def _tensor(data: memoryview) -> tuple[str, Constant]:
    name, kind = "", 1
    dims: list[int] = []
    values: list[float | int] = []
    raw: memoryview | None = None
    for number, value in fields(data):
        if number == 1:
            dims += integers(value)
        elif number == 2:
            kind = integers(value)[0]
        elif number == 4:
            values += floats(value) if len(message(value)) <= 4 * _VALUE_LIMIT else []
        elif number in {5, 7}:
            values += integers(value)
        elif number == 8:
            name = text(value)
        elif number == 9:
            raw = message(value)
    shape = tuple(dims)
    if any(side < 0 for side in shape):
        raise ValueError(f"the tensor {name!r} has the shape {shape}")
    type_name = _TYPES.get(kind, "float32")
    return name, Constant(shape, type_name, _content(shape, type_name, values, raw))


def _content(shape: tuple[int, ...], type_name: str, values: list[float | int], raw: memoryview | None) -> Any:
    """Return the values of a small constant; None if it is large or kept in another file."""
    count = int(np.prod(shape, dtype=np.int64))
    if count > _VALUE_LIMIT or type_name in _ITEM_BYTES or type_name == "float16":
        return None
    if raw is not None and len(raw) == count * item_bytes(type_name):
        return np.frombuffer(raw.tobytes(), dtype=type_name).reshape(shape)
    return np.asarray(values, dtype=type_name).reshape(shape) if len(values) == count else None


def _value(data: memoryview) -> GraphValue:
    name, type_name = "", "float32"
    shape: tuple[Dimension, ...] | None = None
    for number, value in fields(data):
        if number == 1:
            name = text(value)
        elif number == 2:
            for inner, field in fields(message(value)):
                if inner == 1:
                    type_name, shape = _tensor_type(message(field))
    return GraphValue(name, type_name, shape)


def _tensor_type(data: memoryview) -> tuple[str, tuple[Dimension, ...] | None]:
    type_name = "float32"
    shape: tuple[Dimension, ...] | None = None
    for number, value in fields(data):
        if number == 1:
            type_name = _TYPES.get(integers(value)[0], "float32")
        elif number == 2:
            shape = tuple(_dimension(message(field)) for inner, field in fields(message(value)) if inner == 1)
    return type_name, shape


def _dimension(data: memoryview) -> Dimension:
    for number, value in fields(data):
        if number == 1:
            return integers(value)[0]
        if number == 2:
            return text(value)
    return None
