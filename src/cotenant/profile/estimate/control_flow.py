"""Branches and loops of ONNX graphs, followed as a run would: `If`, `Loop` and `Scan`.

The nodes of a subgraph become nodes of the model, once for each iteration. Which branch is taken and how often a loop
runs is often known from values that the graph computes from shapes. Where it depends on data, the branch that moves
more data counts, and the number of iterations must be given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from cotenant.errors import ConfigError
from cotenant.profile.estimate.functions import renamed
from cotenant.profile.estimate.onnx_file import Model, Node
from cotenant.profile.estimate.shape_rules import TensorInfo

if TYPE_CHECKING:
    from cotenant.profile.estimate.shapes import NodeShapes, Walk

CONTROL_FLOW: Final = frozenset(["If", "Loop", "Scan"])
_ENDLESS: Final = 1 << 31
"""Exporters write the largest integer where only the condition ends a loop."""
_FIRST_SCAN_WITHOUT_BATCH: Final = 9


def follow(walk: Walk, node: Node) -> bool:
    """Visit the nodes of the subgraphs of a node; return whether its form is known."""
    if node.type == "If":
        return _branch(walk, node)
    if node.type == "Loop":
        return _loop(walk, node)
    return _scan(walk, node)


def _branch(walk: Walk, node: Node) -> bool:
    found = {name: node.attributes.get(f"{name}_branch") for name in ("then", "else")}
    graphs = {name: graph for name, graph in found.items() if isinstance(graph, Model)}
    if len(graphs) < len(found):
        return False
    condition = _known(walk, node.inputs[0])
    if condition is not None:
        graphs = {name: graph for name, graph in graphs.items() if (name == "then") == bool(condition)}
    begin = len(walk.rows)
    costs: list[tuple[int, list[NodeShapes], list[str]]] = []
    for name, graph in graphs.items():
        outputs = _visit_graph(walk, graph, f"{node.name}/{name}/", {})
        rows = walk.rows[begin:]
        del walk.rows[begin:]
        costs.append((sum(_moved(row) for row in rows), rows, outputs))
    _, rows, outputs = max(costs, key=lambda cost: cost[0])
    walk.rows += rows
    if condition is None:
        walk.notes.append(f"{node.name}: which branch runs depends on data; the one that moves more data counts")
    _name_results(walk, node, outputs)
    return True


def _loop(walk: Walk, node: Node) -> bool:
    body = node.attributes.get("body")
    if not isinstance(body, Model) or len(body.inputs) < 2:
        return False
    given = walk.dimensions.get(node.name)
    limit = _known(walk, node.inputs[0]) if node.inputs else None
    most = given if given is not None else None if limit is None or limit >= _ENDLESS else max(int(limit), 0)
    condition = _known(walk, node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else True
    states, scanned = (
        list(node.inputs[2:]),
        [list[TensorInfo]() for _ in range(len(body.outputs) - len(node.inputs) + 1)],
    )
    count = 0
    while count != most and (condition is None or bool(condition)):
        bound: dict[str, TensorInfo | str] = {
            body.inputs[0].name: TensorInfo((), "int64", np.asarray(count, dtype="int64")),
            body.inputs[1].name: TensorInfo((), "bool", None if condition is None else np.asarray(bool(condition))),
            **{value.name: state for value, state in zip(body.inputs[2:], states, strict=True)},
        }
        outputs = _visit_graph(walk, body, f"{node.name}/{count}/", bound)
        count += 1
        condition = _known(walk, outputs[0]) if given is None else True
        states = outputs[1 : 1 + len(states)]
        for values, name in zip(scanned, outputs[1 + len(states) :], strict=True):
            values.append(walk.tensors.get(name, TensorInfo((), "float32")))
        if most is None and condition is None:
            remedy = f"how often the loop runs depends on data; give it as --dim {node.name}=20"
            raise ConfigError("--dim", node.name, remedy)
    if condition is None:
        walk.notes.append(f"{node.name}: the loop runs at most {count} times; data may end it earlier")
    _name_results(walk, node, states)
    _name_stacks(walk, node.outputs[len(states) :], scanned, [0] * len(scanned))
    return True


def _scan(walk: Walk, node: Node) -> bool:
    body, count = node.attributes.get("body"), int(node.attributes.get("num_scan_inputs", 0))
    if not isinstance(body, Model) or not count or walk.model.opset < _FIRST_SCAN_WITHOUT_BATCH:
        return False
    states, series = list(node.inputs[:-count]), [walk.tensors.get(name) for name in node.inputs[-count:]]
    axes = [int(axis) for axis in node.attributes.get("scan_input_axes") or [0] * count]
    if any(tensor is None or not tensor.shape for tensor in series):
        return False
    items = [_without_axis(tensor, axis) for tensor, axis in zip(series, axes, strict=True) if tensor is not None]
    scanned = [list[TensorInfo]() for _ in range(len(body.outputs) - len(states))]
    for step in range(
        next(tensor.shape[axis] for tensor, axis in zip(series, axes, strict=True) if tensor is not None)
    ):
        bound: dict[str, TensorInfo | str] = dict(
            zip((value.name for value in body.inputs), [*states, *items], strict=True)
        )
        outputs = _visit_graph(walk, body, f"{node.name}/{step}/", bound)
        states = outputs[: len(states)]
        for values, name in zip(scanned, outputs[len(states) :], strict=True):
            values.append(walk.tensors.get(name, TensorInfo((), "float32")))
    _name_results(walk, node, states)
    to_axes = [int(axis) for axis in node.attributes.get("scan_output_axes") or [0] * len(scanned)]
    _name_stacks(walk, node.outputs[len(states) :], scanned, to_axes)
    return True


def _visit_graph(walk: Walk, graph: Model, prefix: str, bound: dict[str, TensorInfo | str]) -> list[str]:
    """Visit the nodes of a subgraph with its inputs bound to tensors or names, and return the names of its outputs."""
    own = {value.name for value in graph.inputs} | set(graph.constants)
    own |= {name for inner in graph.nodes for name in inner.outputs if name}
    walk.declare(graph, prefix)

    def rename(name: str) -> str:
        return prefix + name if name in own else name

    for name, value in bound.items():
        if isinstance(value, str):
            walk.visit(Node("Identity", f"{prefix}{name}", (value,), (prefix + name,), {}))
        else:
            walk.tensors[prefix + name] = value
            walk.written.add(prefix + name)
    for inner in graph.nodes:
        walk.visit(renamed(inner, rename, prefix + inner.name))
    return [rename(name) for name in graph.outputs]


def _name_results(walk: Walk, node: Node, names: Sequence[str]) -> None:
    """Let the outputs of a node be tensors of its subgraph."""
    for name, inner in zip(node.outputs, names, strict=False):
        if name:
            walk.visit(Node("Identity", f"{node.name}/{name}", (inner,), (name,), {}))


def _name_stacks(
    walk: Walk, names: Sequence[str], scanned: Sequence[Sequence[TensorInfo]], axes: Sequence[int]
) -> None:
    """Let outputs of a loop be the values of all its iterations, one after the other."""
    for name, values, axis in zip(names, scanned, axes, strict=False):
        first = values[0] if values else TensorInfo((), "float32")
        shape = list(first.shape)
        shape.insert(axis if axis >= 0 else len(shape) + 1 + axis, len(values))
        walk.tensors[name] = TensorInfo(tuple(shape), first.type)


def _without_axis(tensor: TensorInfo, axis: int) -> TensorInfo:
    shape = list(tensor.shape)
    del shape[axis]
    return TensorInfo(tuple(shape), tensor.type)


def _known(walk: Walk, name: str) -> int | None:
    """Return the value of a scalar; None if it depends on data."""
    tensor = walk.tensors.get(name)
    if tensor is None or tensor.value is None or np.size(tensor.value) != 1:
        return None
    return int(np.asarray(tensor.value).reshape(-1)[0])


def _moved(row: NodeShapes) -> int:
    if row.constant:
        return 0
    return sum(math.prod(tensor.shape) for tensor in (*row.inputs, *row.outputs) if tensor is not None)
