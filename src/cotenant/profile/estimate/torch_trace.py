"""Operators of PyTorch programs, traced with fake tensors: nothing is computed, and no GPU is needed.

A program is `FILE.py:FUNCTION`, where the function takes the batch size and returns a module and its example inputs, or
`FILE.py`, a script that is run as it is until its second optimizer step or its end. In a process of its own, because a
script may change anything.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

import cotenant
from cotenant.errors import ConfigError, SetupError
from cotenant.profile.estimate.onnx_operators import ModelOperators
from cotenant.profile.estimate.operator import Family, Gemm, Operator, Window

PYTHON_VARIABLE: Final = "COTENANT_TORCH_PYTHON"
"""The environment variable that names the Python that has PyTorch, if it is not the one that runs cotenant."""
_TIMEOUT_S: Final = 600
_REMEDY: Final = "install PyTorch: pip install 'cotenant[torch]'"


class TracedCall(msgspec.Struct, frozen=True):
    """One call of an ATen operator: shapes and item sizes of its tensors."""

    name: str
    inputs: list[tuple[list[int], int]]
    outputs: list[tuple[list[int], int]]
    parameters: list[bool] = []
    """For each input, whether it is a parameter of the module."""
    arguments: dict[str, Any] = {}
    view: bool = False


class Trace(msgspec.Struct, frozen=True):
    """All calls of one step."""

    calls: list[TracedCall]
    parameters: int = 0
    weight_bytes: int = 0
    input_bytes: int = 0
    precision: str = "float32"
    steps: int = 0
    """Optimizer steps that were traced; 0: a forward pass only."""
    stopped: str = ""


def trace_program(path: Path, function: str, batch: int, *, train: bool) -> ModelOperators:
    """Return the operators of a program at a batch size; with `train` those of a whole training step."""
    python = os.environ.get(PYTHON_VARIABLE, sys.executable)
    package = str(Path(cotenant.__file__).parents[1])
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((package, os.environ.get("PYTHONPATH", "")))}
    command = [
        python,
        "-m",
        "cotenant.profile.estimate.torch_recorder",
        str(path),
        function,
        str(batch),
        str(int(train)),
    ]
    try:
        done = subprocess.run(command, capture_output=True, env=environ, timeout=_TIMEOUT_S, check=False)  # noqa: S603
    except OSError as error:
        raise ConfigError(PYTHON_VARIABLE, python, f"cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(
            "FILE", str(path), f"its trace took longer than {_TIMEOUT_S} s; use FILE.py:FUNCTION"
        ) from None
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    if done.returncode == 3:
        raise SetupError(f"{path} needs PyTorch, which is not installed; {_REMEDY}")
    if done.returncode:
        raise ConfigError("FILE", str(path), f"cannot be traced: {lines[-1] if lines else 'it ended'}")
    trace = msgspec.json.decode(done.stdout.splitlines()[-1], type=Trace)
    if not trace.calls:
        raise ConfigError("FILE", str(path), "ran no operator on tensors; call the model in the script")
    operators = tuple(operator_of_call(call, index) for index, call in enumerate(trace.calls))
    return ModelOperators(
        operators,
        batch,
        trace.input_bytes,
        0,
        trace.weight_bytes,
        trace.parameters,
        trace.precision,
        backward_traced=trace.steps > 0,
    )


_PRODUCTS: Final = {"mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "_scaled_mm"}
_CONVOLUTIONS: Final = {"convolution", "convolution_backward", "_convolution", "cudnn_convolution"}
_ATTENTION: Final = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_attention_math",
)
_FAMILIES: Final[tuple[tuple[Family, tuple[str, ...]], ...]] = (
    (Family.OPTIMIZER, ("_foreach", "_fused_adam", "_fused_sgd")),
    (Family.NORMALIZATION, ("batch_norm", "layer_norm", "group_norm", "rms_norm", "native_norm")),
    (Family.SOFTMAX, ("softmax", "nll_loss", "cross_entropy")),
    (Family.POOLING, ("pool", "upsample")),
    (Family.LOOKUP, ("embedding", "index", "gather", "scatter", "take")),
    (Family.SORT, ("sort", "topk", "unique", "nonzero", "multinomial", "cumsum")),
    (Family.REDUCTION, ("sum", "mean", "amax", "amin", "argmax", "argmin", "var", "std", "norm", "max", "min")),
    (Family.MOVE, ("clone", "cat", "copy", "stack", "repeat", "contiguous", "pad", "roll", "flip", "constant", "fill")),
    (Family.MOVE, ("zeros", "ones", "full", "arange", "empty", "tril", "triu", "slice_backward", "select_backward")),
    (Family.RECURRENT, ("lstm", "gru", "rnn")),
)  # fmt: skip
_POINTWISE: Final = frozenset(
    [
        "add",
        "sub",
        "mul",
        "div",
        "rsub",
        "pow",
        "sqrt",
        "rsqrt",
        "exp",
        "log",
        "neg",
        "abs",
        "tanh",
        "sigmoid",
        "relu",
        "gelu",
        "silu",
        "hardswish",
        "hardtanh",
        "hardsigmoid",
        "leaky_relu",
        "elu",
        "clamp",
        "where",
        "threshold_backward",
        "gelu_backward",
        "silu_backward",
        "tanh_backward",
        "sigmoid_backward",
        "native_dropout",
        "native_dropout_backward",
        "bernoulli",
        "erf",
        "sin",
        "cos",
        "reciprocal",
        "maximum",
        "minimum",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "logical_and",
        "logical_or",
        "logical_not",
        "bitwise_not",
        "masked_fill",
        "addcmul",
        "addcdiv",
        "lerp",
        "_to_copy",
        "hardtanh_backward",
        "hardswish_backward",
        "softplus",
        "mish",
        "clamp_min",
        "clamp_max",
        "square",
        "floor",
        "ceil",
        "round",
        "sign",
        "remainder",
        "fmod",
        "isnan",
        "isinf",
        "dropout",
        "rand",
        "randn",
        "random",
        "normal",
        "uniform",
        "exponential",
        "bitwise_and",
        "bitwise_or",
        "floor_divide",
        "addmv",
        "dot",
        "relu6",
        "leaky_relu_backward",
        "elu_backward",
        "log_sigmoid",
        "logit",
        "atan2",
        "expm1",
        "log1p",
        "mse_loss",
        "mse_loss_backward",
    ]
)


def operator_of_call(call: TracedCall, index: int) -> Operator:
    """Return one ATen call as an operator; a call without a rule moves its tensors once, and is marked."""
    name = call.name
    read = sum(_size(tensor) for tensor, is_parameter in _inputs(call) if not is_parameter)
    weights = sum(_size(tensor) for tensor, is_parameter in _inputs(call) if is_parameter)
    written = sum(_size(tensor) for tensor in call.outputs)
    elements = sum(_count(shape) for shape, _ in call.outputs)
    if not call.outputs:  # it changes tensors in place, as an optimizer does: about half of them are written
        elements = sum(_count(shape) for shape, _ in call.inputs)
        written = (read + weights) // 2
    item = call.outputs[0][1] if call.outputs else 4
    base = Operator(
        f"{name}_{index}",
        f"aten.{name}",
        _family(call),
        read_bytes=read,
        weight_bytes=weights,
        written_bytes=written,
        elements=elements,
        item_bytes=item,
    )
    if name in _PRODUCTS:
        return msgspec.structs.replace(base, gemm=_product(call))
    if name in _CONVOLUTIONS:
        return _convolution(base, call)
    if name.startswith(_ATTENTION) or name in _ATTENTION:
        return _attention(base, call)
    if base.family is Family.LOOKUP and name == "embedding":
        return msgspec.structs.replace(base, read_bytes=written, weight_bytes=0)
    return base


def _inputs(call: TracedCall) -> list[tuple[tuple[list[int], int], bool]]:
    marks = [*call.parameters, *(False,) * (len(call.inputs) - len(call.parameters))]
    return list(zip(call.inputs, marks, strict=False))


def _family(call: TracedCall) -> Family:
    if call.view:
        return Family.VIEW
    name = call.name.rstrip("_")
    if name in _PRODUCTS or name.startswith(_ATTENTION):
        return Family.MATMUL
    if name in _CONVOLUTIONS:
        return Family.CONVOLUTION
    if name in _POINTWISE:
        return Family.POINTWISE
    for family, words in _FAMILIES:
        if any(word in name for word in words):
            return family
    return Family.UNSUPPORTED


def _product(call: TracedCall) -> Gemm:
    shapes = [shape for shape, _ in call.inputs]
    if call.name in {"addmm", "baddbmm"}:
        shapes = shapes[1:]
    first, second = shapes[0], shapes[1]
    output = call.outputs[0][0]
    inner = first[-1]
    if call.name in {"bmm", "baddbmm"} or (call.name == "matmul" and len(second) > 2):
        return Gemm(first[-2], second[-1], inner, max(_count(output) // max(first[-2] * second[-1], 1), 1))
    columns = output[-1]
    return Gemm(max(_count(output) // max(columns, 1), 1), columns, inner)


def _convolution(base: Operator, call: TracedCall) -> Operator:
    """Return a convolution, or its gradient, which is two products of the same size."""
    backward = call.name == "convolution_backward"
    shapes = [shape for shape, _ in call.inputs]
    if backward:
        gradient, data, weight = shapes[0], shapes[1], shapes[2]
        output = gradient
    else:
        data, weight = shapes[0], shapes[1]
        output = call.outputs[0][0]
    groups = int(call.arguments.get("groups", 1))
    window = Window(tuple(weight[2:]), int(call.arguments.get("stride", 1)), groups)
    transposed = bool(call.arguments.get("transposed", False))
    if transposed:
        pixels, columns, inner = data[0] * _count(data[2:]), weight[1] * window.area, data[1] // groups
    else:
        pixels, columns, inner = output[0] * _count(output[2:]), output[1] // groups, weight[1] * window.area
    gemm = Gemm(pixels, columns, inner, groups)
    if backward:
        gemm = msgspec.structs.replace(gemm, n=2 * gemm.n)
    family = Family.DEPTHWISE if groups > 1 and weight[1] == 1 else Family.CONVOLUTION
    has_bias = len(shapes) > 2 and not backward
    return msgspec.structs.replace(base, family=family, gemm=gemm, window=window, has_bias=has_bias)


def _attention(base: Operator, call: TracedCall) -> Operator:
    """Return fused attention as one product with its scores on chip: two of them forward, five backward."""
    backward = "backward" in call.name
    shapes = [shape for shape, _ in call.inputs if len(shape) == 4]
    query, key = (shapes[1], shapes[2]) if backward and len(shapes) > 2 else (shapes[0], shapes[1])
    times = 5 if backward else 2
    batch = query[0] * query[1]
    return msgspec.structs.replace(base, gemm=Gemm(query[2], key[2], times * query[3], batch))


def _count(shape: list[int]) -> int:
    total = 1
    for side in shape:
        total *= side
    return total


def _size(tensor: tuple[list[int], int]) -> int:
    return _count(tensor[0]) * tensor[1]
