"""Shape rules of ONNX operators: from the tensors that a node reads to those that it writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from cotenant.profile.estimate.onnx_file import Node

Shape: TypeAlias = tuple[int, ...]


class ShapeError(Exception):
    """The shape of an output cannot be derived; the caller uses what the file declares, and says so."""


class TensorInfo(msgspec.Struct, frozen=True):
    """Shape and type of a tensor, and its values if they are known and few."""

    shape: Shape
    type: str
    value: Any = None
    is_constant: bool = False

    @property
    def elements(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)


Inputs: TypeAlias = Sequence[TensorInfo | None]
Rule: TypeAlias = Callable[[Node, Inputs, int], list[TensorInfo]]


def need(inputs: Inputs, index: int) -> TensorInfo:
    """Return an input that must be present."""
    tensor = inputs[index] if index < len(inputs) else None
    if tensor is None:
        raise ShapeError(f"input {index} is unknown")
    return tensor


def integers_of(node: Node, inputs: Inputs, index: int, attribute: str) -> list[int] | None:
    """Return integers that are an input in new versions of an operator, and an attribute in old ones."""
    if attribute and attribute in node.attributes:
        content = node.attributes[attribute]
        return [int(value) for value in content] if isinstance(content, list) else [int(content)]
    tensor = inputs[index] if index < len(inputs) else None
    if tensor is None:
        return None
    if tensor.value is None:
        raise ShapeError(f"the values of input {index} are unknown")
    return [int(value) for value in np.asarray(tensor.value).reshape(-1)]


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the common shape of tensors that are combined element by element."""
    return tuple(int(side) for side in np.broadcast_shapes(*shapes))


def axes_of(axes: Sequence[int], rank: int) -> list[int]:
    """Return axes as numbers from 0 on."""
    return [axis + rank if axis < 0 else axis for axis in axes]


def _same(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    first = need(inputs, 0)
    value = first.value if node.type in {"Identity", "Cast"} else None
    if value is not None and node.type == "Cast":
        value = np.asarray(value).astype(_CAST.get(int(node.attributes.get("to", 1)), "float32"))
    kind = _CAST.get(int(node.attributes["to"]), first.type) if "to" in node.attributes else first.type
    outputs = [TensorInfo(first.shape, kind, value)]
    return outputs + [TensorInfo(first.shape, "bool")] * (len(node.outputs) - 1 if node.type == "Dropout" else 0)


_CAST: Final = {
    1: "float32",
    2: "uint8",
    3: "int8",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    16: "bfloat16",
}
_ARITHMETIC: Final[dict[str, Callable[..., Any]]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Mod": np.mod,
    "Equal": np.equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Min": np.minimum,
    "Max": np.maximum,
    "Pow": np.power,
}
_COMPARISONS: Final = {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor"}


def _binary(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    tensors = [need(inputs, index) for index in range(len(inputs))]
    shape = broadcast([tensor.shape for tensor in tensors])
    kind = "bool" if node.type in _COMPARISONS else tensors[1 if node.type == "Where" else 0].type
    value = None
    if all(tensor.value is not None for tensor in tensors):
        arrays = [np.asarray(tensor.value) for tensor in tensors]
        if node.type == "Where":
            value = np.where(*arrays)
        elif node.type == "Div":
            whole = arrays[0].dtype.kind in "iu"
            with np.errstate(all="ignore"):
                value = arrays[0] // arrays[1] if whole else arrays[0] / arrays[1]
        elif node.type in _ARITHMETIC:
            with np.errstate(all="ignore"):
                value = arrays[0]
                for other in arrays[1:]:
                    value = _ARITHMETIC[node.type](value, other)
    return [TensorInfo(shape, kind, value)]


def _unary_value(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    first = need(inputs, 0)
    functions: dict[str, Callable[[Any], Any]] = {
        "Neg": np.negative, "Floor": np.floor, "Ceil": np.ceil, "Sqrt": np.sqrt, "Not": np.logical_not, "Abs": np.abs
    }  # fmt: skip
    value = None if first.value is None else functions[node.type](np.asarray(first.value))
    return [TensorInfo(first.shape, first.type, value)]


def _constant(node: Node, _inputs: Inputs, _opset: int) -> list[TensorInfo]:
    for key, content in node.attributes.items():
        if key == "value":
            return [TensorInfo(content.shape, content.type, content.value, is_constant=True)]
        if key.startswith("value_"):
            kind = "int64" if key.startswith("value_int") else "float32"
            array = np.asarray(content, dtype=kind)
            return [TensorInfo(array.shape, kind, array, is_constant=True)]
    raise ShapeError("the constant has no value")


def _shape_of(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    shape = need(inputs, 0).shape
    rank = len(shape)
    start, end = int(node.attributes.get("start", 0)), int(node.attributes.get("end", rank))
    array = np.asarray(shape[slice(start, end)], dtype="int64")
    return [TensorInfo(array.shape, "int64", array)]


def _size_of(_node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    return [TensorInfo((), "int64", np.asarray(need(inputs, 0).elements, dtype="int64"))]


def _gather(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    data, index = need(inputs, 0), need(inputs, 1)
    axis = axes_of([int(node.attributes.get("axis", 0))], len(data.shape))[0]
    shape = (*data.shape[:axis], *index.shape, *data.shape[axis + 1 :])
    value = None
    if data.value is not None and index.value is not None:
        value = np.take(np.asarray(data.value), np.asarray(index.value).astype("int64"), axis=axis)
    return [TensorInfo(shape, data.type, value)]


def _concat(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    tensors = [need(inputs, index) for index in range(len(inputs))]
    axis = axes_of([int(node.attributes.get("axis", 0))], len(tensors[0].shape))[0]
    shape = list(tensors[0].shape)
    shape[axis] = sum(tensor.shape[axis] for tensor in tensors)
    value = None
    if all(tensor.value is not None for tensor in tensors):
        value = np.concatenate([np.asarray(tensor.value) for tensor in tensors], axis=axis)
    return [TensorInfo(tuple(shape), tensors[0].type, value)]


def _reshape(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    data = need(inputs, 0)
    target = integers_of(node, inputs, 1, "shape") or []
    keeps_zero = bool(node.attributes.get("allowzero", 0))
    shape = [data.shape[index] if side == 0 and not keeps_zero else side for index, side in enumerate(target)]
    rest = math.prod(side for side in shape if side != -1)
    if -1 in shape:
        shape[shape.index(-1)] = data.elements // rest if rest else 0
    elif rest and rest != data.elements:
        # The model was exported with a fixed batch, which is the first side.
        scaled, remainder = divmod(data.elements * shape[0], rest)
        if remainder:
            raise ShapeError("the new shape has another number of elements")
        shape[0] = scaled
    if math.prod(shape) != data.elements:
        raise ShapeError("the new shape has another number of elements")
    value = None if data.value is None else np.asarray(data.value).reshape(shape)
    return [TensorInfo(tuple(shape), data.type, value)]


def _flatten(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    data = need(inputs, 0)
    axis = int(node.attributes.get("axis", 1))
    axis = axis + len(data.shape) if axis < 0 else axis
    return [TensorInfo((math.prod(data.shape[:axis]), math.prod(data.shape[axis:])), data.type)]


def _transpose(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    data = need(inputs, 0)
    order = node.attributes.get("perm") or list(reversed(range(len(data.shape))))
    value = None if data.value is None else np.transpose(np.asarray(data.value), order)
    return [TensorInfo(tuple(data.shape[axis] for axis in order), data.type, value)]


def _squeeze(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    data = need(inputs, 0)
    axes = integers_of(node, inputs, 1, "axes")
    rank = len(data.shape)
    gone = set(axes_of(axes, rank)) if axes else {index for index, side in enumerate(data.shape) if side == 1}
    shape = tuple(side for index, side in enumerate(data.shape) if index not in gone)
    return [TensorInfo(shape, data.type, None if data.value is None else np.asarray(data.value).reshape(shape))]


def _unsqueeze(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    data = need(inputs, 0)
    axes = integers_of(node, inputs, 1, "axes") or []
    rank = len(data.shape) + len(axes)
    added, sides = set(axes_of(axes, rank)), iter(data.shape)
    if len(added) != len(axes) or not added <= set(range(rank)):
        raise ShapeError(f"the axes {axes} do not fit {rank} dimensions")
    shape = tuple(1 if index in added else next(sides) for index in range(rank))
    return [TensorInfo(shape, data.type, None if data.value is None else np.asarray(data.value).reshape(shape))]


def _slice(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    data = need(inputs, 0)
    starts = integers_of(node, inputs, 1, "starts") or []
    ends = integers_of(node, inputs, 2, "ends") or []
    axes = axes_of(integers_of(node, inputs, 3, "axes") or list(range(len(starts))), len(data.shape))
    steps = integers_of(node, inputs, 4, "") or [1] * len(starts)
    slices = [slice(None)] * len(data.shape)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        low = None if step < 0 and end < -data.shape[axis] else end
        slices[axis] = slice(start, low, step)
    shape = tuple(len(range(*part.indices(side))) for part, side in zip(slices, data.shape, strict=True))
    value = None if data.value is None else np.asarray(data.value)[tuple(slices)]
    return [TensorInfo(shape, data.type, value)]


def _split(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    data = need(inputs, 0)
    axis = axes_of([int(node.attributes.get("axis", 0))], len(data.shape))[0]
    parts = integers_of(node, inputs, 1, "split")
    count = len(node.outputs)
    if parts is None:
        side = -(-data.shape[axis] // count)
        parts = [side] * (count - 1) + [data.shape[axis] - side * (count - 1)]
    return [TensorInfo((*data.shape[:axis], part, *data.shape[axis + 1 :]), data.type) for part in parts]


def _expand(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    data = need(inputs, 0)
    shape = broadcast([data.shape, tuple(integers_of(node, inputs, 1, "shape") or [])])
    value = None if data.value is None else np.broadcast_to(np.asarray(data.value), shape)
    return [TensorInfo(shape, data.type, value)]


def _tile(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    data = need(inputs, 0)
    times = integers_of(node, inputs, 1, "repeats") or []
    return [TensorInfo(tuple(side * count for side, count in zip(data.shape, times, strict=True)), data.type)]


def _pad(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    data = need(inputs, 0)
    pads = integers_of(node, inputs, 1, "pads") or []
    rank = len(pads) // 2
    axes = axes_of(integers_of(node, inputs, 3, "") or list(range(rank)), len(data.shape))
    shape = list(data.shape)
    for position, axis in enumerate(axes):
        shape[axis] += pads[position] + pads[position + rank]
    return [TensorInfo(tuple(shape), data.type)]


def _constant_of_shape(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    shape = tuple(integers_of(node, inputs, 0, "shape") or [])
    content = node.attributes.get("value")
    kind = content.type if content is not None else "float32"
    fill = np.asarray(content.value).reshape(-1)[0] if content is not None and content.value is not None else 0
    value = np.full(shape, fill) if math.prod(shape) <= 1 << 16 else None
    return [TensorInfo(shape, kind, value)]


def _range(_node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    start, limit, step = (need(inputs, index) for index in range(3))
    if start.value is None or limit.value is None or step.value is None:
        raise ShapeError("the limits of a range are unknown")
    array = np.arange(start.value.item(), limit.value.item(), step.value.item())
    return [TensorInfo(array.shape, start.type, array.astype(start.type))]


def _one_hot(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    indices, depth = need(inputs, 0), integers_of(node, inputs, 1, "") or []
    axis = int(node.attributes.get("axis", -1))
    rank = len(indices.shape) + 1
    axis = axis + rank if axis < 0 else axis
    return [TensorInfo((*indices.shape[:axis], depth[0], *indices.shape[axis:]), need(inputs, 2).type)]


def _reduce(node: Node, inputs: Inputs, opset: int) -> list[TensorInfo]:
    data = need(inputs, 0)
    is_arg = node.type in {"ArgMax", "ArgMin"}
    axes = [int(node.attributes.get("axis", 0))] if is_arg else integers_of(node, inputs, 1, "axes")
    if not axes and node.attributes.get("noop_with_empty_axes", 0):
        return [TensorInfo(data.shape, data.type)]
    rank = len(data.shape)
    gone = set(axes_of(axes, rank)) if axes else set(range(rank))
    keep = bool(node.attributes.get("keepdims", 1))
    shape = tuple(1 if index in gone else side for index, side in enumerate(data.shape) if keep or index not in gone)
    del opset
    value = None
    if node.type == "ReduceProd" and data.value is not None:
        value = np.prod(np.asarray(data.value), axis=tuple(sorted(gone)), keepdims=keep)
    return [TensorInfo(shape, "int64" if is_arg else data.type, value)]


def _top_k(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    data = need(inputs, 0)
    count = integers_of(node, inputs, 1, "k") or [1]
    axis = axes_of([int(node.attributes.get("axis", -1))], len(data.shape))[0]
    shape = (*data.shape[:axis], count[0], *data.shape[axis + 1 :])
    return [TensorInfo(shape, data.type), TensorInfo(shape, "int64")]


def _like_indices(_node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    return [TensorInfo(need(inputs, 1).shape, need(inputs, 0).type)]


def _gather_nd(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    data, index = need(inputs, 0), need(inputs, 1)
    batch = int(node.attributes.get("batch_dims", 0))
    return [TensorInfo((*index.shape[:-1], *data.shape[batch + index.shape[-1] :]), data.type)]


def _depth_to_space(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    count, channels, height, width = need(inputs, 0).shape
    side = int(node.attributes["blocksize"])
    if node.type == "DepthToSpace":
        shape = (count, channels // side**2, height * side, width * side)
    else:
        shape = (count, channels * side**2, height // side, width // side)
    return [TensorInfo(shape, need(inputs, 0).type)]


def _resize(node: Node, inputs: Inputs, opset: int) -> list[TensorInfo]:
    data = need(inputs, 0)
    sizes = inputs[3] if len(inputs) > 3 else None
    if sizes is not None and sizes.value is not None and np.size(sizes.value):
        sides = [int(value) for value in np.asarray(sizes.value).reshape(-1)]
        shape = (*data.shape[: len(data.shape) - len(sides)], *sides)
        return [TensorInfo((data.shape[0], *shape[1:]), data.type)]
    index = 1 if node.type == "Upsample" or opset < 11 else 2
    scales = inputs[index] if len(inputs) > index else None
    factors = node.attributes.get("scales") or (None if scales is None else scales.value)
    if factors is None:
        raise ShapeError("the sizes of a resize are unknown")
    rates = [float(value) for value in np.asarray(factors).reshape(-1)]
    return [TensorInfo(tuple(int(side * rate) for side, rate in zip(data.shape, rates, strict=True)), data.type)]


def _non_zero(_node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    data = need(inputs, 0)
    if data.value is None:
        raise ShapeError("the result depends on the data")
    array = np.asarray(np.nonzero(np.atleast_1d(np.asarray(data.value))), dtype="int64")
    return [TensorInfo(array.shape, "int64", array)]


def _random(node: Node, _inputs: Inputs, _opset: int) -> list[TensorInfo]:
    return [TensorInfo(tuple(int(side) for side in node.attributes["shape"]), "float32")]


def _cast_like(_node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    return [TensorInfo(need(inputs, 0).shape, need(inputs, 1).type)]


def _eye_like(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    data = need(inputs, 0)
    return [TensorInfo(data.shape, _CAST.get(int(node.attributes.get("dtype", 0)), data.type))]


def _trilu(_node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    return [TensorInfo(need(inputs, 0).shape, need(inputs, 0).type)]


_POINTWISE: Final = (
    "Relu LeakyRelu PRelu Elu Selu Celu ThresholdedRelu Sigmoid HardSigmoid HardSwish Tanh Erf Exp Log Reciprocal "
    "Softplus Softsign Mish Gelu FastGelu BiasGelu QuickGelu Sin Cos Tan Round Sign Clip Softmax LogSoftmax Hardmax "
    "Dropout Identity Cast LRN LpNormalization MeanVarianceNormalization CumSum IsNaN IsInf ReverseSequence "
    "BatchNormalization InstanceNormalization GroupNormalization LayerNormalization SimplifiedLayerNormalization "
    "RMSNormalization RotaryEmbedding ScatterElements ScatterND RandomNormalLike RandomUniformLike Bernoulli "
    "Acos Acosh Asin Asinh Atan Atanh Cosh Sinh Swish Shrink BitwiseNot"
)


BASE_RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(_POINTWISE.split(), _same),
    **dict.fromkeys(("Neg", "Floor", "Ceil", "Sqrt", "Not", "Abs"), _unary_value),
    **dict.fromkeys((*_ARITHMETIC, "Div", "Xor", "Where", "Sum", "Mean", "BitShift"), _binary),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), _binary),
    **dict.fromkeys(("RandomNormal", "RandomUniform"), _random),
    "CastLike": _cast_like,
    "EyeLike": _eye_like,
    **dict.fromkeys(
        ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"), _reduce
    ),
    **dict.fromkeys(("ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare", "ArgMax", "ArgMin"), _reduce),
    "Constant": _constant,
    "Shape": _shape_of,
    "Size": _size_of,
    "Gather": _gather,
    "Concat": _concat,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Slice": _slice,
    "Split": _split,
    "Expand": _expand,
    "Tile": _tile,
    "Pad": _pad,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "OneHot": _one_hot,
    "TopK": _top_k,
    "GatherElements": _like_indices,
    "GatherND": _gather_nd,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _depth_to_space,
    "Resize": _resize,
    "Upsample": _resize,
    "NonZero": _non_zero,
    "Trilu": _trilu,
}
