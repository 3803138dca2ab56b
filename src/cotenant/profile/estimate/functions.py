"""Calls of the functions of an ONNX file, replaced by the nodes that they stand for.

PyTorch's exporter writes each module of a program as such a function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from cotenant.errors import ConfigError
from cotenant.profile.estimate.onnx_file import AttributeReference, Function, Model, Node

_DEEPEST: Final = 64
"""A function that calls itself is no ONNX, and would never end."""

Rename = Callable[[str], str]


def without_calls(model: Model, where: str) -> Model:
    """Return the model with every call of a function replaced by its nodes, in subgraphs as well."""
    if not model.functions:
        return model
    return msgspec.structs.replace(model, nodes=tuple(_expanded(model.nodes, model, where, 0)))


def _expanded(nodes: Iterable[Node], model: Model, where: str, depth: int) -> Iterator[Node]:
    if depth > _DEEPEST:
        raise ConfigError("FILE", where, "its functions call themselves; export the model again")
    for node in nodes:
        function = model.functions.get((node.domain, node.type))
        if function is not None:
            yield from _expanded(_body(node, function), model, where, depth + 1)
        else:
            yield _with_expanded_graphs(node, model, where, depth)


def _with_expanded_graphs(node: Node, model: Model, where: str, depth: int) -> Node:
    graphs = {
        name: msgspec.structs.replace(graph, nodes=tuple(_expanded(graph.nodes, model, where, depth + 1)))
        for name, graph in node.attributes.items()
        if isinstance(graph, Model)
    }
    return msgspec.structs.replace(node, attributes=node.attributes | graphs) if graphs else node


def _body(call: Node, function: Function) -> Iterator[Node]:
    """Yield the nodes of a function with the names of the call's tensors; others get the name of the call in front."""
    names = dict(zip(function.inputs, call.inputs, strict=False))
    names |= dict.fromkeys(function.inputs[len(call.inputs) :], "")  # trailing inputs may be left out
    names |= dict(zip(function.outputs, call.outputs, strict=False))

    def rename(name: str) -> str:
        return names.get(name, f"{call.name}/{name}") if name else ""

    for node in function.nodes:
        yield renamed(node, rename, f"{call.name}/{node.name}", function.defaults | call.attributes)


def renamed(node: Node, rename: Rename, name: str, attributes: dict[str, Any] | None = None) -> Node:
    """Return a node with other names of its tensors, and with the attributes that it refers to."""
    own = {
        key: (attributes or {}).get(content.name) if isinstance(content, AttributeReference) else content
        for key, content in node.attributes.items()
    }
    content = {
        key: _renamed_graph(value, rename, attributes) if isinstance(value, Model) else value
        for key, value in own.items()
        if value is not None
    }
    return msgspec.structs.replace(
        node,
        name=name,
        inputs=tuple(rename(each) for each in node.inputs),
        outputs=tuple(rename(each) for each in node.outputs),
        attributes=content,
    )


def _renamed_graph(graph: Model, rename: Rename, attributes: dict[str, Any] | None) -> Model:
    """Return a subgraph whose nodes read renamed tensors of the graph around it; its own tensors keep their names."""
    own = {value.name for value in graph.inputs} | set(graph.constants)
    own |= {name for node in graph.nodes for name in node.outputs}

    def rename_outer(name: str) -> str:
        return name if not name or name in own else rename(name)

    nodes = tuple(renamed(node, rename_outer, node.name, attributes) for node in graph.nodes)
    outputs = tuple(rename_outer(name) for name in graph.outputs)
    return msgspec.structs.replace(graph, nodes=nodes, outputs=outputs)
