"""Attention as one operator: that of ONNX, and those that onnxruntime's optimizer writes. Shapes, and its products."""

from __future__ import annotations

from typing import Final, NamedTuple

from cotenant.profile.estimate.onnx_file import Node
from cotenant.profile.estimate.shape_rules import Inputs, Rule, ShapeError, TensorInfo, need

ATTENTIONS: Final = frozenset(["Attention", "MultiHeadAttention", "GroupQueryAttention"])
MICROSOFT: Final = "com.microsoft"


class AttentionSides(NamedTuple):
    """Batch, heads, length of queries, length of keys, width of a head's keys, and width of a head's values."""

    batch: int
    heads: int
    queries: int
    keys: int
    width: int
    value_width: int


def attention_sides(node: Node, inputs: Inputs) -> AttentionSides:
    """Return the sizes of an attention with separate queries, keys and values."""
    query = need(inputs, 0).shape
    if node.type == "GroupQueryAttention":
        return _grouped_sides(node, inputs)
    key, value = need(inputs, 1).shape, need(inputs, 2).shape
    past = inputs[4] if node.domain != MICROSOFT and len(inputs) > 4 else None
    older = past.shape[-2] if past is not None else 0
    if len(query) == 4:
        batch, heads, queries, width = query
        return AttentionSides(batch, heads, queries, key[-2] + older, width, value[-1])
    if len(key) != 3 or len(value) != 3:
        raise ShapeError("keys and values are packed")
    heads = int(node.attributes.get("num_heads") or node.attributes.get("q_num_heads") or 1)
    key_heads = int(node.attributes.get("kv_num_heads") or heads)
    batch, queries, width = query
    return AttentionSides(batch, heads, queries, key[1] + older, width // heads, value[2] // key_heads)


def _grouped_sides(node: Node, inputs: Inputs) -> AttentionSides:
    batch, queries, width = need(inputs, 0).shape
    heads = int(node.attributes.get("num_heads", 1))
    key_heads = int(node.attributes.get("kv_num_heads", heads))
    is_packed = len(inputs) < 2 or inputs[1] is None
    head = width // (heads + 2 * key_heads) if is_packed else width // heads
    past = inputs[3] if len(inputs) > 3 else None
    older = past.shape[-2] if past is not None else 0
    return AttentionSides(batch, heads, queries, older + queries, head, head)


def _attention(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    first = need(inputs, 0)
    if node.type == "Attention" and node.domain == MICROSOFT:
        # The output has a third of the width of the packed weight.
        return [TensorInfo((*first.shape[:-1], need(inputs, 1).shape[-1] // 3), first.type)]
    sides = attention_sides(node, inputs)
    if len(first.shape) == 4:
        shape: tuple[int, ...] = (sides.batch, sides.heads, sides.queries, sides.value_width)
    else:
        shape = (sides.batch, sides.queries, sides.heads * sides.value_width)
    heads = int(node.attributes.get("kv_num_heads") or sides.heads)
    present = [
        TensorInfo((sides.batch, heads, sides.keys, width), first.type) for width in (sides.width, sides.value_width)
    ]
    return [TensorInfo(shape, first.type), *present][: max(len(node.outputs), 1)]


def _embedded(_node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    words, table = need(inputs, 0), need(inputs, 2)
    shape = (*words.shape, table.shape[-1])
    sums = TensorInfo(shape, table.type)
    return [sums, TensorInfo(words.shape[:1], "int32"), sums]


def _skip_normalization(_node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    """Return the normalized sum, two statistics, and the sum itself."""
    first = need(inputs, 0)
    statistics = TensorInfo((*first.shape[:-1], 1), "float32")
    sums = TensorInfo(first.shape, first.type)
    return [sums, statistics, statistics, sums]


ATTENTION_RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(ATTENTIONS, _attention),
    "EmbedLayerNormalization": _embedded,
    "SkipLayerNormalization": _skip_normalization,
    "SkipSimplifiedLayerNormalization": _skip_normalization,
}
