"""Shape rules of quantized operators: of ONNX, and of onnxruntime's quantizer."""

from __future__ import annotations

from typing import Final

from cotenant.profile.estimate.onnx_file import Node
from cotenant.profile.estimate.shape_rules import Inputs, Rule, TensorInfo, axes_of, broadcast, need


def _quantized(_node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    zero = inputs[2] if len(inputs) > 2 else None
    return [TensorInfo(need(inputs, 0).shape, zero.type if zero is not None else "uint8")]


def _dequantized(_node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    return [TensorInfo(need(inputs, 0).shape, need(inputs, 1).type)]


def _dynamic(_node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    scalar = TensorInfo((), "float32")
    return [TensorInfo(need(inputs, 0).shape, "uint8"), scalar, TensorInfo((), "uint8")]


def _same(_node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    return [TensorInfo(need(inputs, 0).shape, need(inputs, 0).type)]


def _binary(_node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    first, second = need(inputs, 0), need(inputs, 3)
    return [TensorInfo(broadcast([first.shape, second.shape]), first.type)]


def _pooled(_node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    data = need(inputs, 0)
    return [TensorInfo((*data.shape[:2], *(1,) * (len(data.shape) - 2)), data.type)]


def _concat(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    tensors = [need(inputs, index) for index in range(2, len(inputs), 3)]
    axis = axes_of([int(node.attributes.get("axis", 0))], len(tensors[0].shape))[0]
    shape = list(tensors[0].shape)
    shape[axis] = sum(tensor.shape[axis] for tensor in tensors)
    return [TensorInfo(tuple(shape), tensors[0].type)]


def _gemm(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    first, second = need(inputs, 0).shape, need(inputs, 3).shape
    rows = first[1] if node.attributes.get("transA", 0) else first[0]
    columns = second[0] if node.attributes.get("transB", 0) else second[1]
    return [TensorInfo((rows, columns), need(inputs, 0).type)]


def _packed_product(node: Node, inputs: Inputs, _opset: int) -> list[TensorInfo]:
    """Return the result of a product with weights of a few bits."""
    data = need(inputs, 0)
    return [TensorInfo((*data.shape[:-1], int(node.attributes["N"])), data.type)]


QUANTIZED_RULES: Final[dict[str, Rule]] = {
    "QuantizeLinear": _quantized,
    "DequantizeLinear": _dequantized,
    "DynamicQuantizeLinear": _dynamic,
    **dict.fromkeys(("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax"), _same),
    **dict.fromkeys(("QLinearAdd", "QLinearMul"), _binary),
    "QLinearGlobalAveragePool": _pooled,
    "QLinearConcat": _concat,
    "QGemm": _gemm,
    "MatMulNBits": _packed_product,
}
