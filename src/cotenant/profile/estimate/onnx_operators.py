"""ONNX nodes with shapes as operators of the estimate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.errors import ConfigError
from cotenant.profile.estimate.attention_rules import ATTENTIONS, MICROSOFT, attention_sides
from cotenant.profile.estimate.onnx_file import Model, Node, item_bytes, read_onnx
from cotenant.profile.estimate.operator import Family, Gemm, Operator, Window
from cotenant.profile.estimate.shape_rules import ShapeError, TensorInfo, need
from cotenant.profile.estimate.shapes import NodeShapes, infer_shapes, tensor_bytes
from cotenant.profile.estimate.window_rules import einsum_sides

_VIEWS: Final = frozenset(
    [
        "Reshape",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
        "Identity",
        "Slice",
        "Split",
        "Expand",
        "Constant",
        "Shape",
        "Size",
        "Dropout",
        "Transpose",
    ]
)
_MOVES: Final = frozenset(
    [
        "Concat",
        "Pad",
        "Tile",
        "DepthToSpace",
        "SpaceToDepth",
        "ConstantOfShape",
        "Range",
        "ReverseSequence",
        "QLinearConcat",
        "Resize",
        "Upsample",
    ]
)
_LOOKUPS: Final = frozenset(
    ["Gather", "GatherElements", "GatherND", "OneHot", "ScatterElements", "ScatterND", "EmbedLayerNormalization"]
)
_NORMALIZATIONS: Final = frozenset(
    [
        "BatchNormalization",
        "InstanceNormalization",
        "GroupNormalization",
        "LayerNormalization",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
        "SimplifiedLayerNormalization",
        "RMSNormalization",
        "MeanVarianceNormalization",
        "LpNormalization",
        "LRN",
    ]
)
_POOLS: Final = frozenset(["MaxPool", "AveragePool", "LpPool", "RoiAlign", "MaxRoiPool"])
_PRODUCTS: Final = ATTENTIONS | {
    *("MatMul", "MatMulInteger", "FusedMatMul", "QLinearMatMul", "MatMulNBits", "Gemm", "QGemm", "Einsum")
}
_CONVOLUTIONS: Final = frozenset(["Conv", "FusedConv", "ConvInteger", "QLinearConv", "ConvTranspose"])
_GATES: Final = {"LSTM": 4, "GRU": 3, "RNN": 1}
_POINTWISE_PASSES: Final = {
    **dict.fromkeys(("LRN", "InstanceNormalization", "GroupNormalization", "DynamicQuantizeLinear"), 2.0)
}
_UNPACKING: Final = frozenset(["DequantizeLinear", "MatMulNBits"])
"""Operators that turn packed integers into floats: the type of their constants is not that of the arithmetic."""
_TRAINABLE_ELEMENTS: Final = 2
"""Constants with fewer elements are scalars of the formula, not weights."""


class ModelOperators(msgspec.Struct, frozen=True):
    """All operators of a model at one batch size, and the bytes of its inputs, outputs and weights."""

    operators: tuple[Operator, ...]
    batch: int
    input_bytes: int
    output_bytes: int
    weight_bytes: int
    parameters: int
    precision: str = "float32"
    """Type of most of its weights."""
    backward_traced: bool = False
    """The operators contain a whole training step, so that no backward pass is derived."""
    is_quantized: bool = False
    """Its products read dequantized values: a compiler computes them in int8, an eager framework as floats."""
    notes: tuple[str, ...] = ()
    """What was assumed about the model's branches and loops."""


def onnx_operators(path: Path, batch: int, dimensions: Mapping[str, int]) -> ModelOperators:
    """Return the operators of an ONNX file."""
    return model_operators(read_onnx(path), batch, dimensions, str(path))


def model_operators(model: Model, batch: int, dimensions: Mapping[str, int], where: str) -> ModelOperators:
    """Return the operators of a model at a batch size."""
    shapes = infer_shapes(model, batch, dimensions, where)
    rows, constants = shapes.rows, shapes.constants
    consumers: dict[str, list[str]] = {}
    for row in rows:
        for name in row.node.inputs:
            consumers.setdefault(name, []).append(row.node.type)
    operators = [operator_of(row, consumers) for row in rows if not row.constant]
    if not any(operator.family is not Family.VIEW and not operator.host_only for operator in operators):
        raise ConfigError("FILE", where, "none of its operators launches a kernel: there is nothing to estimate")
    sizes = {name: math.prod(value.shape) for name, value in constants.items()}
    types: dict[str, int] = {}
    for name, constant in constants.items():
        if not set(consumers.get(name, ())) & _UNPACKING:
            types[constant.type] = types.get(constant.type, 0) + sizes[name]
    return ModelOperators(
        tuple(operators),
        batch,
        sum(tensor_bytes(tensor) for tensor in shapes.inputs),
        sum(tensor_bytes(tensor) for tensor in shapes.outputs),
        sum(sizes[name] * item_bytes(constant.type) for name, constant in constants.items()),
        sum(size for name, size in sizes.items() if constants[name].type.startswith(("float", "bfloat"))),
        max(types, key=lambda kind: types[kind], default="float32"),
        is_quantized=_is_quantized(rows),
        notes=shapes.notes,
    )


def _is_quantized(rows: Sequence[NodeShapes]) -> bool:
    """Return whether a product reads the result of DequantizeLinear."""
    unpacked = {name for row in rows if row.node.type == "DequantizeLinear" for name in row.node.outputs}
    products = _PRODUCTS | _CONVOLUTIONS
    return any(row.node.type in products and not unpacked.isdisjoint(row.node.inputs[:2]) for row in rows)


def operator_of(row: NodeShapes, consumers: Mapping[str, Sequence[str]]) -> Operator:
    """Return one node as an operator; a node that cannot be classified moves its tensors once, and is marked."""
    node = row.node
    weights = [tensor for tensor in row.inputs if tensor is not None and tensor.is_constant]
    written = sum(tensor_bytes(tensor) for tensor in row.outputs)
    first = row.outputs[0] if row.outputs else TensorInfo((), "float32")
    base = Operator(
        node.name,
        node.type,
        _family(row, consumers),
        tuple(name for name in node.inputs if name),
        tuple(name for name in node.outputs if name),
        read_bytes=sum(tensor_bytes(tensor) for tensor in row.inputs if tensor is not None and not tensor.is_constant),
        weight_bytes=sum(tensor_bytes(tensor) for tensor in weights),
        written_bytes=written,
        elements=sum(tensor.elements for tensor in row.outputs),
        item_bytes=item_bytes(first.type),
        parameters=sum(
            tensor.elements
            for tensor in weights
            if tensor.type.startswith(("float", "bfloat")) and tensor.elements >= _TRAINABLE_ELEMENTS
        ),
        passes=_POINTWISE_PASSES.get(node.type, 1.0),
        host_only=all(tensor.value is not None for tensor in row.outputs) and bool(row.outputs),
        reason=row.reason,
    )
    try:
        return _detailed(base, row)
    except (ShapeError, ValueError, IndexError, KeyError, ZeroDivisionError):
        return msgspec.structs.replace(base, family=Family.UNSUPPORTED)


def _family(row: NodeShapes, consumers: Mapping[str, Sequence[str]]) -> Family:
    node = row.node
    kind = node.type
    if not row.known:
        return Family.UNSUPPORTED
    if kind == "Transpose":
        # A reshape of a transposed tensor needs a copy; a product reads it by its strides.
        copied = any(after in {"Reshape", "Flatten"} for name in node.outputs for after in consumers.get(name, ()))
        return Family.MOVE if copied else Family.VIEW
    tables = (
        (_VIEWS, Family.VIEW),
        (_MOVES, Family.MOVE),
        (_LOOKUPS, Family.LOOKUP),
        (_NORMALIZATIONS, Family.NORMALIZATION),
        (_POOLS, Family.POOLING),
        (_PRODUCTS, Family.MATMUL),
        (_CONVOLUTIONS, Family.CONVOLUTION),
    )
    for types, family in tables:
        if kind in types:
            return family
    if kind in {"Softmax", "LogSoftmax", "Hardmax"}:
        return Family.SOFTMAX
    if kind.startswith(("Reduce", "Arg", "Global", "QLinearGlobal")) or kind == "CumSum":
        return Family.REDUCTION
    if kind in _GATES:
        return Family.RECURRENT
    return Family.SORT if kind in {"TopK", "NonZero"} else Family.POINTWISE


def _detailed(base: Operator, row: NodeShapes) -> Operator:
    """Add the dimensions of products and windows."""
    node, inputs = row.node, row.inputs
    if base.family is Family.MATMUL:
        return msgspec.structs.replace(base, gemm=_gemm(node, row), has_bias=len(node.inputs) > 2)
    if base.family is Family.CONVOLUTION:
        return _convolution(base, row)
    if base.family is Family.POOLING:
        kernel = tuple(node.attributes.get("kernel_shape") or (1, 1))
        stride = max(node.attributes.get("strides") or [1])
        return msgspec.structs.replace(base, window=Window(kernel, int(stride)))
    if base.family is Family.LOOKUP:
        # Only the rows that are looked up are read, not the whole table.
        index = need(inputs, 0 if base.type == "EmbedLayerNormalization" else 1)
        return msgspec.structs.replace(base, read_bytes=tensor_bytes(index) + base.written_bytes, weight_bytes=0)
    if base.family is Family.RECURRENT:
        return _recurrent(base, row)
    if base.type in {"Resize", "Upsample"}:
        return msgspec.structs.replace(base, read_bytes=min(base.read_bytes, base.written_bytes), weight_bytes=0)
    return base


def _gemm(node: Node, row: NodeShapes) -> Gemm:
    inputs, output = row.inputs, row.outputs[0].shape
    first = need(inputs, 0).shape
    if node.type in {"Gemm", "QGemm"}:
        return Gemm(output[0], output[1], first[0] if node.attributes.get("transA", 0) else first[1])
    if node.type == "Einsum":
        shapes = [need(inputs, index).shape for index in range(len(inputs))]
        letters, right, sides = einsum_sides(str(node.attributes["equation"]), shapes)
        summed = math.prod(side for letter, side in sides.items() if letter not in right)
        shared = math.prod(sides[letter] for letter in right if all(letter in part for part in letters))
        left = math.prod(sides[letter] for letter in right if letter in letters[0]) // max(shared, 1)
        total = math.prod(sides[letter] for letter in right)
        return Gemm(left, max(total // max(left * shared, 1), 1), summed, shared)
    if node.type in ATTENTIONS and not (node.type == "Attention" and node.domain == MICROSOFT):
        one = attention_sides(node, inputs)
        return Gemm(one.queries, one.keys, one.width + one.value_width, one.batch * one.heads)
    if node.type == "MatMulNBits":
        return Gemm(math.prod(first[:-1]), int(node.attributes["N"]), first[-1])
    if node.type == "Attention":
        rows, width = math.prod(first[:-1]), output[-1]
        heads = int(node.attributes.get("num_heads", 1))
        products = Gemm(rows, 3 * width, first[-1])
        scores = 4.0 * first[0] * first[1] ** 2 * width / max(heads, 1) * heads
        return Gemm(rows, 3 * width + round(scores / (2.0 * rows * first[-1])), products.k)
    second = need(inputs, 3 if node.type == "QLinearMatMul" else 1).shape
    inner = first[-1]
    columns = second[-1] if len(second) > 1 else 1
    if len(second) <= 2:
        return Gemm(math.prod(first[:-1]), columns, inner)
    rows = first[-2] if len(first) > 1 else 1
    return Gemm(rows, columns, inner, math.prod(output) // max(rows * columns, 1))


def _convolution(base: Operator, row: NodeShapes) -> Operator:
    node = row.node
    weight = need(row.inputs, 3 if node.type == "QLinearConv" else 1)
    data, output = need(row.inputs, 0), row.outputs[0]
    groups = int(node.attributes.get("group", 1))
    kernel = tuple(weight.shape[2:])
    strides = node.attributes.get("strides") or [1]
    window = Window(kernel, int(max(strides)), groups, int(max(node.attributes.get("dilations") or [1])))
    if node.type == "ConvTranspose":
        pixels = data.shape[0] * math.prod(data.shape[2:])
        gemm = Gemm(pixels, weight.shape[1] * window.area, data.shape[1] // groups, groups)
    else:
        pixels = output.shape[0] * math.prod(output.shape[2:])
        gemm = Gemm(pixels, output.shape[1] // groups, weight.shape[1] * window.area, groups)
    is_depthwise = groups > 1 and weight.shape[1] == 1
    family = Family.DEPTHWISE if is_depthwise else Family.CONVOLUTION
    has_bias = len([name for name in node.inputs if name]) == 3
    return msgspec.structs.replace(base, family=family, gemm=gemm, window=window, has_bias=has_bias)


def _recurrent(base: Operator, row: NodeShapes) -> Operator:
    data, weight = need(row.inputs, 0), need(row.inputs, 1)
    steps, batch = data.shape[0], data.shape[1]
    directions, gates = weight.shape[0], _GATES[row.node.type]
    hidden = need(row.inputs, 2).shape[2]
    gemm = Gemm(batch, gates * hidden, data.shape[2] + hidden)
    return msgspec.structs.replace(base, gemm=gemm, steps=steps * directions, kernels=steps * directions)
