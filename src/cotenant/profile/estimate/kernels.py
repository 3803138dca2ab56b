"""Kernels that common libraries launch for an operator: their work, grid and block, and the kernels of training."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from cotenant.profile.estimate.operator import Family, Gemm, Operator
from cotenant.units.value import Value

_VECTOR: Final = 512
"""Elements of one block of an element-wise kernel: 128 threads with 4 each, as PyTorch launches them."""
_ROW_THREADS: Final = 256
_COPY_TILE: Final = 1024
_OPTIMIZER_CHUNK: Final = 65536
"""Elements of one block of a multi-tensor optimizer kernel."""
_MAX_BLOCKS: Final = 1 << 24


class Precision(enum.Enum):
    """Arithmetic of products; other kernels only see the size of their elements."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    FP16_SHORT = "fp16-short"
    BF16 = "bf16"
    INT8 = "int8"

    @property
    def item_bytes(self) -> int:
        """Return the size of an element."""
        return {"fp16": 2, "fp16-short": 2, "bf16": 2, "int8": 1}.get(self.value, 4)


class Phase(enum.Enum):
    """Part of a step that a kernel belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


class KernelWork(Value, frozen=True):
    """One kernel launch before its duration is known."""

    function: str
    family: Family
    operator: str
    """Type of the operator that it belongs to."""
    moved_bytes: float
    flops: float
    blocks: int
    threads: int = 128
    registers: int = 32
    shared_bytes: int = 0
    gemm: Gemm | None = None
    precision: Precision = Precision.FP32
    reduction_area: int = 1
    """Window of a convolution: its input is read once for each position of the window at most."""
    stride: int = 1
    groups: int = 1
    phase: Phase = Phase.FORWARD
    operators: int = 1
    """How many framework operators this launch stands for; 0: it is a further kernel of the previous one."""


def forward_kernels(operator: Operator, precision: Precision) -> list[KernelWork]:
    """Return the kernels of one operator, in order; none for views and shape computations."""
    if operator.family is Family.VIEW or operator.host_only:
        return []
    scale = precision.item_bytes / 4 if operator.item_bytes == 4 else 1.0
    if operator.gemm is not None and operator.family is not Family.RECURRENT:
        return _product_kernels(operator, operator.gemm, precision, scale)
    if operator.family is Family.RECURRENT:
        return _recurrent_kernels(operator, precision, scale)
    moved = operator.moved_bytes * scale
    work = _plain(operator, _function(operator), moved, operator.flops)
    return [work, *(msgspec.structs.replace(work, operators=0),) * (operator.kernels - 1)]


def backward_kernels(operator: Operator, precision: Precision) -> list[KernelWork]:
    """Return the kernels that compute the gradients of one operator."""
    if operator.family is Family.VIEW or operator.host_only:
        return []
    scale = precision.item_bytes / 4 if operator.item_bytes == 4 else 1.0
    if operator.gemm is not None:
        return list(_product_gradients(operator, operator.gemm, precision, scale))
    family = operator.family
    read, written = operator.read_bytes * scale, operator.written_bytes * scale
    name = _function(operator) + "_backward"
    if family is Family.NORMALIZATION:
        # One kernel for the input (two reads, one write) and one for the weights (two reads).
        first = _plain(operator, name, 3 * read, 8.0 * operator.elements)
        second = _plain(operator, name + "_weights", 2 * read, 2.0 * operator.elements)
        kernels = [first, msgspec.structs.replace(second, operators=0)]
    elif family is Family.SOFTMAX:
        kernels = [_plain(operator, name, read + 2 * written, 4.0 * operator.elements)]
    elif family is Family.POINTWISE:
        inputs = max(round(operator.read_bytes / max(operator.written_bytes, 1)), 1)
        if operator.type in {"Add", "Sub", "Sum", "aten.add"}:
            return []  # the gradient is passed on as it is
        kernels = [_plain(operator, name, written + inputs * 2 * written, 2.0 * operator.elements)]
    else:
        kernels = [_plain(operator, name, read + written, operator.flops)]
    return [msgspec.structs.replace(kernel, phase=Phase.BACKWARD) for kernel in kernels]


def optimizer_kernels(parameters: int, precision: Precision) -> list[KernelWork]:
    """Return the kernels of one step of SGD with momentum over all parameters, as multi-tensor kernels.

    Every kernel reads and writes its tensors once: momentum (read gradient, read and write momentum), and update.
    """
    if not parameters:
        return []
    size = 4.0 * parameters if precision is not Precision.INT8 else 2.0 * parameters
    blocks = max(-(-parameters // _OPTIMIZER_CHUNK), 1)
    kernels = []
    for name in ("multi_tensor_momentum", "multi_tensor_update", "multi_tensor_zero"):
        moved = size if name.endswith("zero") else 3 * size
        kernels.append(
            KernelWork(name, Family.OPTIMIZER, "optimizer", moved, 2.0 * parameters, blocks, 512, phase=Phase.OPTIMIZER)
        )
    return kernels


def _product_kernels(operator: Operator, gemm: Gemm, precision: Precision, scale: float) -> list[KernelWork]:
    moved = (operator.read_bytes + operator.weight_bytes + operator.written_bytes) * scale
    kernels = [_product(operator, gemm, precision, moved)]
    if operator.has_bias and operator.family in {Family.CONVOLUTION, Family.DEPTHWISE}:
        bias = 2.0 * operator.written_bytes * scale
        kernels.append(
            msgspec.structs.replace(
                _plain(operator, "add_bias", bias, float(operator.elements)), family=Family.POINTWISE, operators=0
            )
        )
    return kernels


def _product(operator: Operator, gemm: Gemm, precision: Precision, moved: float) -> KernelWork:
    window = operator.window
    name = {Family.CONVOLUTION: "implicit_gemm", Family.DEPTHWISE: "conv_depthwise2d"}.get(operator.family, "gemm")
    return KernelWork(
        f"{name}_{precision.value}",
        operator.family,
        operator.type,
        moved,
        gemm.flops,
        max(-(-operator.elements // 256), 1),
        threads=256,
        registers=128 if operator.family is not Family.DEPTHWISE else 48,
        gemm=gemm,
        precision=precision,
        reduction_area=window.area if window is not None else 1,
        stride=window.stride if window is not None else 1,
        groups=window.groups if window is not None else 1,
    )


def _product_gradients(operator: Operator, gemm: Gemm, precision: Precision, scale: float) -> Iterator[KernelWork]:
    """Yield the two products of a gradient: with respect to the input, and to the other factor or the weights."""
    moved = (operator.read_bytes + operator.weight_bytes + operator.written_bytes) * scale
    for suffix, product in (
        ("dgrad", Gemm(gemm.m, gemm.k, gemm.n, gemm.batch)),
        ("wgrad", Gemm(gemm.k, gemm.n, gemm.m, gemm.batch)),
    ):
        work = _product(operator, product, precision, moved)
        for step in range(operator.steps):
            yield msgspec.structs.replace(
                work, function=f"{work.function}_{suffix}", phase=Phase.BACKWARD, operators=int(not step)
            )
    if operator.has_bias:
        bias = _plain(operator, "reduce_bias", operator.written_bytes * scale, float(operator.elements))
        yield msgspec.structs.replace(bias, family=Family.REDUCTION, phase=Phase.BACKWARD, operators=0)


def _recurrent_kernels(operator: Operator, precision: Precision, scale: float) -> list[KernelWork]:
    """Return a product and an element-wise kernel for each time step; weights stay in the cache between steps."""
    assert operator.gemm is not None
    steps = operator.steps
    moved = (operator.read_bytes + operator.written_bytes) * scale / steps
    weights = operator.weight_bytes * scale
    product = _product(operator, operator.gemm, precision, moved + weights)
    cell = _plain(operator, "recurrent_cell", 3 * moved, 8.0 * operator.elements / steps)
    later = msgspec.structs.replace(product, operators=0)
    cell = msgspec.structs.replace(cell, operators=0)
    return [kernel for step in range(steps) for kernel in (product if step == 0 else later, cell)]


def _function(operator: Operator) -> str:
    name = operator.type.removeprefix("aten.").lower()
    prefix = {
        Family.POINTWISE: "vectorized_elementwise",
        Family.NORMALIZATION: "normalize",
        Family.SOFTMAX: "softmax_forward",
        Family.REDUCTION: "reduce_kernel",
        Family.POOLING: "pooling",
        Family.MOVE: "copy_kernel",
        Family.LOOKUP: "index_kernel",
        Family.SORT: "radix_sort",
        Family.UNSUPPORTED: "unsupported",
    }.get(operator.family, "kernel")
    return f"{prefix}_{name}"


def _plain(operator: Operator, function: str, moved: float, flops: float) -> KernelWork:
    elements = max(operator.elements, 1)
    threads, per_block = 128, _VECTOR
    if operator.family in {Family.NORMALIZATION, Family.SOFTMAX, Family.REDUCTION}:
        threads, per_block = _ROW_THREADS, _COPY_TILE
    elif operator.family in {Family.MOVE, Family.LOOKUP, Family.POOLING, Family.SORT}:
        threads, per_block = _ROW_THREADS, _ROW_THREADS
    blocks = min(max(-(-elements // per_block), 1), _MAX_BLOCKS)
    if operator.family is Family.REDUCTION:
        read = operator.read_bytes // max(operator.item_bytes, 1)
        blocks = min(max(-(-read // (16 * per_block)), 1), _MAX_BLOCKS)
    return KernelWork(function, operator.family, operator.type, moved, flops, blocks, threads)


def training_kernels(operators: Sequence[Operator], precision: Precision, parameters: int) -> Iterable[KernelWork]:
    """Yield the kernels of one training step: forward, backward in reverse order, and optimizer."""
    for operator in operators:
        yield from forward_kernels(operator, precision)
    for operator in reversed(operators):
        yield from backward_kernels(operator, precision)
    yield from optimizer_kernels(parameters, precision)


def waves(blocks: int, slots: int) -> int:
    """Return how many rounds a grid needs if this many of its blocks run at once."""
    return max(math.ceil(blocks / max(slots, 1)), 1)
