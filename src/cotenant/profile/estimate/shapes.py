"""Shape inference for ONNX graphs at a given batch size, with values of small integer tensors carried along.

Exported models compute shapes inside the graph (Shape, Gather, Concat, Reshape), so values are needed as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from cotenant.errors import ConfigError
from cotenant.profile.estimate.onnx_file import Model, Node, item_bytes
from cotenant.profile.estimate.shape_rules import BASE_RULES, Rule, ShapeError, TensorInfo
from cotenant.profile.estimate.window_rules import WINDOW_RULES

_VALUE_LIMIT: Final = 1 << 16
RULES: Final[dict[str, Rule]] = {**BASE_RULES, **WINDOW_RULES}
"""Every operator whose output shapes are known."""


class NodeShapes(msgspec.Struct, frozen=True):
    """The tensors of one node. `known` is False if no rule for its outputs exists: then they are a guess."""

    node: Node
    inputs: tuple[TensorInfo | None, ...]
    outputs: tuple[TensorInfo, ...]
    known: bool = True
    constant: bool = False
    """All inputs are constants of the model, so that the result is computed once and not for every request."""


def infer_shapes(
    model: Model, batch: int, dimensions: Mapping[str, int], where: str
) -> tuple[list[NodeShapes], tuple[TensorInfo, ...]]:
    """Return the tensors of all nodes and of the model's inputs; raise `ConfigError` for a size that is not given."""
    tensors: dict[str, TensorInfo] = {
        name: TensorInfo(constant.shape, constant.type, constant.value, is_constant=True)
        for name, constant in model.constants.items()
    }
    inputs = []
    names = _batch_names(model)
    for value in model.inputs:
        shape = _input_shape(value.name, value.shape, batch, (names, dimensions), where)
        tensors[value.name] = TensorInfo(shape, value.type)
        inputs.append(tensors[value.name])
    rows = []
    for node in model.nodes:
        row = _node_shapes(model, node, tensors, batch)
        rows.append(row)
        tensors.update((name, output) for name, output in zip(node.outputs, row.outputs, strict=False) if name)
    return rows, tuple(inputs)


def _batch_names(model: Model) -> set[str]:
    """Return the names of sizes that are the first of an input."""
    return {value.shape[0] for value in model.inputs if value.shape and isinstance(value.shape[0], str)}


def _input_shape(
    name: str,
    declared: tuple[int | str | None, ...] | None,
    batch: int,
    names: tuple[set[str], Mapping[str, int]],
    where: str,
) -> tuple[int, ...]:
    if declared is None:
        raise ConfigError("FILE", where, f"its input {name!r} has no shape; export the model with shapes of its inputs")
    batch_names, dimensions = names
    shape = []
    for index, side in enumerate(declared):
        if isinstance(side, str) and side in dimensions:
            shape.append(dimensions[side])
        elif index == 0 and (not isinstance(side, int) or side >= 1) and len(declared) > 1:
            shape.append(batch if not isinstance(side, int) or side == 1 else _static(side, batch, where))
        elif isinstance(side, str) and side in batch_names:
            shape.append(batch)
        elif isinstance(side, int) and side >= 0:
            shape.append(side)
        elif index == 0:
            shape.append(batch)
        else:
            known = side if isinstance(side, str) and side else f"{name}.{index}"
            if known in dimensions:
                shape.append(dimensions[known])
                continue
            raise ConfigError("--dim", known, f"the size of input {name!r} is not fixed; give it as --dim {known}=128")
    return tuple(shape)


def _static(side: int, batch: int, where: str) -> int:
    """Return the batch of a model that was exported with a fixed one."""
    if batch % side and side % batch:
        raise ConfigError(
            "--batch", batch, f"{where} was exported for a batch of {side}; choose a multiple, or export it again"
        )
    return batch


def _node_shapes(model: Model, node: Node, tensors: Mapping[str, TensorInfo], batch: int) -> NodeShapes:
    inputs = tuple(tensors.get(name) if name else None for name in node.inputs)
    present = [tensor for tensor in inputs if tensor is not None]
    constant = bool(present) and all(tensor.is_constant for tensor in present)
    rule = RULES.get(node.type) if not node.domain or node.domain == "com.microsoft" else None
    outputs: tuple[TensorInfo, ...] = ()
    known = rule is not None
    if rule is not None:
        try:
            outputs = tuple(_bounded(output) for output in rule(node, inputs, model.opset))
        except (ShapeError, ValueError, IndexError, TypeError, KeyError, ZeroDivisionError, OverflowError):
            known = False
    if not known:
        outputs = _guess(model, node, inputs, batch)
    if constant or node.type == "Constant":
        outputs = tuple(msgspec.structs.replace(output, is_constant=True) for output in outputs)
    return NodeShapes(node, inputs, outputs, known, constant)


def _bounded(output: TensorInfo) -> TensorInfo:
    """Drop values that are too large to be shapes."""
    if output.value is not None and np.size(output.value) > _VALUE_LIMIT:
        return msgspec.structs.replace(output, value=None)
    return output


def _guess(model: Model, node: Node, inputs: tuple[TensorInfo | None, ...], batch: int) -> tuple[TensorInfo, ...]:
    """Return the shapes that the file declares, or those of the largest input."""
    largest = max((tensor for tensor in inputs if tensor is not None), key=lambda tensor: tensor.elements, default=None)
    fallback = largest or TensorInfo((batch,), "float32")
    outputs = []
    for name in node.outputs:
        declared = model.declared.get(name)
        if declared is not None and declared.shape is not None:
            sides = [side if isinstance(side, int) and side > 0 else batch for side in declared.shape]
            outputs.append(TensorInfo(tuple(sides), declared.type))
        else:
            outputs.append(TensorInfo(fallback.shape, fallback.type))
    return tuple(outputs)


def tensor_bytes(tensor: TensorInfo) -> int:
    """Return the size of a tensor."""
    return math.prod(tensor.shape) * item_bytes(tensor.type)
