"""Shape inference for ONNX graphs at a given batch size, with values of small integer tensors carried along.

Exported models compute shapes inside the graph (Shape, Gather, Concat, Reshape), so values are needed as well. Loops
and branches are followed as a run would: see `control_flow.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from cotenant.errors import ConfigError
from cotenant.profile.estimate.attention_rules import ATTENTION_RULES
from cotenant.profile.estimate.control_flow import CONTROL_FLOW, follow
from cotenant.profile.estimate.functions import without_calls
from cotenant.profile.estimate.onnx_file import Constant, GraphValue, Model, Node, item_bytes
from cotenant.profile.estimate.quantized_rules import QUANTIZED_RULES
from cotenant.profile.estimate.shape_rules import BASE_RULES, Rule, ShapeError, TensorInfo
from cotenant.profile.estimate.window_rules import WINDOW_RULES

_VALUE_LIMIT: Final = 1 << 16
_MOST_ROWS: Final = 100_000
"""Largest number of operators of one request, with those of all iterations of loops."""
_BATCH_NAME: Final = re.compile(r"(n|b|bs|.*batch.*)", re.IGNORECASE)
_RULE_ERRORS: Final = (ShapeError, ValueError, IndexError, TypeError, KeyError, ZeroDivisionError, OverflowError)
RULES: Final[dict[str, Rule]] = {**BASE_RULES, **WINDOW_RULES, **ATTENTION_RULES, **QUANTIZED_RULES}
"""Every operator whose output shapes are known."""


class NodeShapes(msgspec.Struct, frozen=True):
    """The tensors of one node. `known` is False if no rule for its outputs exists: then they are a guess."""

    node: Node
    inputs: tuple[TensorInfo | None, ...]
    outputs: tuple[TensorInfo, ...]
    known: bool = True
    constant: bool = False
    """All inputs are constants of the model, so that the result is computed once and not for every request."""
    reason: str = ""
    """Why the rule of this operator could not be applied; empty if there is none."""


class InferredShapes(msgspec.Struct, frozen=True):
    """All nodes of one request in order, with the tensors of each."""

    rows: list[NodeShapes]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    constants: dict[str, Constant]
    """Constants of the model and its subgraphs."""
    notes: tuple[str, ...]
    """What was assumed about branches and loops."""


def infer_shapes(model: Model, batch: int, dimensions: Mapping[str, int], where: str) -> InferredShapes:
    """Return the tensors of all nodes and of the model's inputs; raise `ConfigError` for a size that is not given."""
    model = without_calls(model, where)
    walk = Walk(model, batch, dimensions, where)
    inputs, walk.notes = _input_tensors(model, batch, dimensions, where)
    walk.declare(model)
    walk.tensors.update(inputs)
    walk.written |= set(inputs)
    for node in model.nodes:
        walk.visit(node)
    outputs = tuple(walk.tensors[name] for name in model.outputs if name in walk.tensors)
    notes = tuple(dict.fromkeys(walk.notes))
    return InferredShapes(walk.rows, tuple(inputs.values()), outputs, walk.constants, notes)


class Walk:
    """Visits nodes in the order of a run. Tensors of subgraphs have names of their own."""

    def __init__(self, model: Model, batch: int, dimensions: Mapping[str, int], where: str) -> None:
        """Begin without any tensor; `declare` adds those of a graph."""
        self.model = model
        self.batch = batch
        self.dimensions = dimensions
        self.where = where
        self.tensors: dict[str, TensorInfo] = {}
        self.written: set[str] = set()
        self.rows: list[NodeShapes] = []
        self.notes: list[str] = []
        self.constants: dict[str, Constant] = {}
        self._declared: dict[str, GraphValue] = {}
        self._graphs: set[int] = set()

    def declare(self, graph: Model, prefix: str = "") -> None:
        """Add the constants of a graph, and what it declares about its tensors, with a prefix of their names."""
        if id(graph) not in self._graphs:  # iterations of a loop share the constants of its body
            self._graphs.add(id(graph))
            self.constants.update((prefix + name, constant) for name, constant in graph.constants.items())
        for name, constant in graph.constants.items():
            self.tensors[prefix + name] = TensorInfo(constant.shape, constant.type, constant.value, is_constant=True)
            self.written.add(prefix + name)
        self._declared.update((prefix + name, value) for name, value in graph.declared.items())

    def visit(self, node: Node) -> None:
        """Add the rows of a node, and its outputs to the known tensors."""
        missing = next((name for name in node.inputs if name and name not in self.written), None)
        if missing is not None:
            remedy = f"the node {node.name!r} reads {missing!r}, which no node before it writes; export the model again"
            raise ConfigError("FILE", self.where, remedy)
        if len(self.rows) >= _MOST_ROWS:
            remedy = f"one request runs more than {_MOST_ROWS:,} operators, by loops at {node.name!r}"
            raise ConfigError("FILE", self.where, f"{remedy}; give fewer iterations with --dim NAME=COUNT")
        self.written.update(name for name in node.outputs if name)
        if node.type in CONTROL_FLOW and not node.domain and self._follows(node):
            return
        row = self._row(node)
        self.rows.append(row)
        self.tensors.update((name, output) for name, output in zip(node.outputs, row.outputs, strict=False) if name)

    def _follows(self, node: Node) -> bool:
        try:
            return follow(self, node)
        except _RULE_ERRORS:
            remedy = f"the inputs of {node.name!r} do not fit its subgraph; export the model again"
            raise ConfigError("FILE", self.where, remedy) from None

    def _row(self, node: Node) -> NodeShapes:
        inputs = tuple(self.tensors.get(name) if name else None for name in node.inputs)
        present = [tensor for tensor in inputs if tensor is not None]
        constant = bool(present) and all(tensor.is_constant for tensor in present)
        rule = RULES.get(node.type) if not node.domain or node.domain == "com.microsoft" else None
        outputs: tuple[TensorInfo, ...] = ()
        known, reason = rule is not None, ""
        if rule is not None:
            try:
                outputs = tuple(_bounded(output) for output in rule(node, inputs, self.model.opset))
            except _RULE_ERRORS as error:
                known = False
                reason = str(error) if isinstance(error, ShapeError) else "its shapes or attributes do not fit together"
        if not known:
            outputs = self._guess(node, inputs)
        if constant or node.type == "Constant":
            outputs = tuple(msgspec.structs.replace(output, is_constant=True) for output in outputs)
        return NodeShapes(node, inputs, outputs, known, constant, reason)

    def _guess(self, node: Node, inputs: tuple[TensorInfo | None, ...]) -> tuple[TensorInfo, ...]:
        """Return the shapes that the file declares, or those of the largest input."""
        present = (tensor for tensor in inputs if tensor is not None)
        fallback = max(present, key=lambda tensor: tensor.elements, default=TensorInfo((self.batch,), "float32"))
        outputs = []
        for name in node.outputs:
            declared = self._declared.get(name)
            if declared is not None and declared.shape is not None:
                sides = [side if isinstance(side, int) and side > 0 else self.batch for side in declared.shape]
                outputs.append(TensorInfo(tuple(sides), declared.type))
            else:
                outputs.append(TensorInfo(fallback.shape, fallback.type))
        return tuple(outputs)


def _input_tensors(
    model: Model, batch: int, dimensions: Mapping[str, int], where: str
) -> tuple[dict[str, TensorInfo], list[str]]:
    """Return the tensors of the model's inputs, and what was assumed about their batch."""
    names = _batch_names(model)
    fixed, notes = _fixed_batch(model, batch, where)
    open_sizes: list[str] = []
    inputs = {}
    for value in model.inputs:
        if value.shape is None:
            remedy = f"its input {value.name!r} has no shape; export the model with shapes of its inputs"
            raise ConfigError("FILE", where, remedy)
        shape = []
        for index, side in enumerate(value.shape):
            size_name = side if isinstance(side, str) and side else f"{value.name}.{index}"
            is_first = index == 0
            if size_name in dimensions:
                shape.append(dimensions[size_name])
            elif isinstance(side, str) and side:
                shape.append(batch)
                if side not in names:
                    open_sizes.append(side)
            elif isinstance(side, int) and side >= 1:
                shape.append(batch if is_first and len(value.shape) > 1 and side == fixed else side)
            else:
                shape.append(batch)
                if not is_first:
                    open_sizes.append(size_name)
        inputs[value.name] = TensorInfo(tuple(shape), value.type)
    if open_sizes:
        missing = list(dict.fromkeys(open_sizes))
        words = " ".join(f"--dim {name}=128" for name in missing)
        are = "these sizes open; give them" if len(missing) > 1 else "this size open; give it"
        raise ConfigError("--dim", ", ".join(missing), f"the model leaves {are} as in {words}")
    return inputs, notes


def _batch_names(model: Model) -> set[str]:
    """Return the names of the batch size: those that say so, or else those of the first size of an input."""
    sides = {side for value in model.inputs for side in value.shape or () if isinstance(side, str)}
    if named := {side for side in sides if _BATCH_NAME.fullmatch(side)}:
        return named
    return {value.shape[0] for value in model.inputs if value.shape and isinstance(value.shape[0], str)}


def _fixed_batch(model: Model, batch: int, where: str) -> tuple[int, list[str]]:
    """Return the first size of inputs that stands for the batch although the file fixes it, and what was assumed.

    It is 1, or the size that all inputs have in common. Where an input leaves its batch open, no fixed size is one.
    """
    sides = {value.shape[0] for value in model.inputs if value.shape and len(value.shape) > 1}
    fixed = {side for side in sides if isinstance(side, int) and side >= 1}
    if fixed != sides or 1 in fixed:
        return 1, []
    if len(fixed) != 1:
        return 0, [f"its inputs have different first sizes, none of which is a batch: {batch} changes nothing"] * bool(
            fixed and batch != 1
        )
    (side,) = fixed
    if batch % side and side % batch:
        remedy = f"{where} was exported for a batch of {side}; choose a multiple, or export it again"
        raise ConfigError("--batch", batch, remedy)
    assumed = f"the file fixes a first size of {side} for its inputs, which counts as the batch and is {batch} here"
    return side, [assumed] * (side != batch)


def _bounded(output: TensorInfo) -> TensorInfo:
    """Drop values that are too large to be shapes."""
    if output.value is not None and np.size(output.value) > _VALUE_LIMIT:
        return msgspec.structs.replace(output, value=None)
    return output


def tensor_bytes(tensor: TensorInfo) -> int:
    """Return the size of a tensor."""
    return math.prod(tensor.shape) * item_bytes(tensor.type)
