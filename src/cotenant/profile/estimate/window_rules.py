"""Shape rules of products, convolutions, pooling and recurrent layers."""

from __future__ import annotations

from typing import Final

from cotenant.profile.estimate.onnx_file import Node
from cotenant.profile.estimate.shape_rules import Inputs, Rule, ShapeError, TensorInfo, broadcast, need


def matmul_shape(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a product with broadcast leading sides."""
    left = (1, *first) if len(first) == 1 else first
    right = (*second, 1) if len(second) == 1 else second
    if left[-1] != right[-2]:
        raise ShapeError(f"the inner sides of the product differ: {left[-1]} and {right[-2]}")
    shape = (*broadcast([left[:-2], right[:-2]]), left[-2], right[-1])
    if len(first) == 1:
        shape = (*shape[:-2], shape[-1])
    return shape[:-1] if len(second) == 1 else shape


def _matmul(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    second = 3 if node.type == "QLinearMatMul" else 1
    kind = "int32" if node.type == "MatMulInteger" else need(inputs, 0).type
    return [TensorInfo(matmul_shape(need(inputs, 0).shape, need(inputs, second).shape), kind)]


def _gemm(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    first, second = need(inputs, 0).shape, need(inputs, 1).shape
    rows = first[1] if node.attributes.get("transA", 0) else first[0]
    columns = second[0] if node.attributes.get("transB", 0) else second[1]
    return [TensorInfo((rows, columns), need(inputs, 0).type)]


def einsum_sides(equation: str, shapes: list[tuple[int, ...]]) -> tuple[list[str], str, dict[str, int]]:
    """Return the letters of every input and of the output, and the size of every letter."""
    equation = equation.replace(" ", "")
    if "..." in equation:
        raise ShapeError("the equation has an ellipsis")
    left, arrow, right = equation.partition("->")
    inputs = left.split(",")
    sides: dict[str, int] = {}
    for letters, shape in zip(inputs, shapes, strict=True):
        sides.update(zip(letters, shape, strict=True))
    if not arrow:
        letters = "".join(inputs)
        right = "".join(sorted(letter for letter in sides if letters.count(letter) == 1))
    return inputs, right, sides


def _einsum(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    shapes = [need(inputs, index).shape for index in range(len(inputs))]
    _, right, sides = einsum_sides(str(node.attributes["equation"]), shapes)
    return [TensorInfo(tuple(sides[letter] for letter in right), need(inputs, 0).type)]


def _extent(node: Node, sides: tuple[int, ...], kernel: list[int]) -> tuple[int, ...]:
    """Return the spatial sides of the output of a convolution or of pooling."""
    rank = len(sides)
    strides = node.attributes.get("strides") or [1] * rank
    dilations = node.attributes.get("dilations") or [1] * rank
    pads = node.attributes.get("pads") or [0] * (2 * rank)
    auto = node.attributes.get("auto_pad", "NOTSET")
    ceil = bool(node.attributes.get("ceil_mode", 0))
    extent = []
    for index, side in enumerate(sides):
        if auto in {"SAME_UPPER", "SAME_LOWER"}:
            extent.append(-(-side // strides[index]))
            continue
        padding = 0 if auto == "VALID" else pads[index] + pads[index + rank]
        free = side + padding - dilations[index] * (kernel[index] - 1) - 1
        steps = -(-free // strides[index]) if ceil else free // strides[index]
        if ceil and steps * strides[index] >= side + pads[index]:
            steps -= 1
        if free < 0:
            raise ShapeError("the window is larger than its input")
        extent.append(steps + 1)
    return tuple(extent)


def _conv(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    data, weight = need(inputs, 0), need(inputs, 3 if node.type == "QLinearConv" else 1)
    kernel = node.attributes.get("kernel_shape") or list(weight.shape[2:])
    return [TensorInfo((data.shape[0], weight.shape[0], *_extent(node, data.shape[2:], kernel)), data.type)]


def _conv_transpose(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    data, weight = need(inputs, 0), need(inputs, 1)
    rank = len(data.shape) - 2
    kernel = node.attributes.get("kernel_shape") or list(weight.shape[2:])
    strides = node.attributes.get("strides") or [1] * rank
    dilations = node.attributes.get("dilations") or [1] * rank
    pads = node.attributes.get("pads") or [0] * (2 * rank)
    extra = node.attributes.get("output_padding") or [0] * rank
    sides = node.attributes.get("output_shape") or [
        strides[index] * (side - 1) + extra[index] + (kernel[index] - 1) * dilations[index] + 1 - pads[index]
        - pads[index + rank]
        for index, side in enumerate(data.shape[2:])
    ]  # fmt: skip
    groups = int(node.attributes.get("group", 1))
    return [TensorInfo((data.shape[0], weight.shape[1] * groups, *sides[-rank:]), data.type)]


def _pool(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    data = need(inputs, 0)
    extent = _extent(node, data.shape[2:], node.attributes["kernel_shape"])
    output = TensorInfo((*data.shape[:2], *extent), data.type)
    return [output, TensorInfo(output.shape, "int64")][: max(len(node.outputs), 1)]


def _global_pool(_node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    data = need(inputs, 0)
    return [TensorInfo((*data.shape[:2], *(1,) * (len(data.shape) - 2)), data.type)]


def _recurrent(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    data, weight = need(inputs, 0), need(inputs, 1)
    steps, batch = data.shape[:2]
    directions = weight.shape[0]
    hidden = int(node.attributes.get("hidden_size") or need(inputs, 2).shape[2])
    state = TensorInfo((directions, batch, hidden), data.type)
    return [TensorInfo((steps, directions, batch, hidden), data.type), state, state][: max(len(node.outputs), 1)]


def _sampled(_node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    data, grid = need(inputs, 0), need(inputs, 1)
    return [TensorInfo((*data.shape[:2], *grid.shape[1:-1]), data.type)]


def _reduce_window(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    data = need(inputs, 0)
    count = need(inputs, 1).shape[0]
    height, width = int(node.attributes.get("output_height", 1)), int(node.attributes.get("output_width", 1))
    return [TensorInfo((count, data.shape[1], height, width), data.type)]


WINDOW_RULES: Final[dict[str, Rule]] = {
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "FusedMatMul": _matmul,
    "QLinearMatMul": _matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "Conv": _conv,
    "FusedConv": _conv,
    "ConvInteger": _conv,
    "QLinearConv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "LpPool": _pool,
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
    "GlobalLpPool": _global_pool,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    "GridSample": _sampled,
    "RoiAlign": _reduce_window,
    "MaxRoiPool": _reduce_window,
}
