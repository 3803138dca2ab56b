"""Fusion as TensorRT and similar compilers do it: fewer kernels, and no intermediate results in device memory.

Rules: constants are folded into products (batch normalization after a convolution), element-wise operators join the
kernel that produces their input if no other operator needs it, and concatenations are written in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.profile.estimate.operator import Family, Operator

_FOLDED: Final = frozenset(("BatchNormalization", "aten.batch_norm"))
_HEADS: Final = frozenset(
    (
        Family.MATMUL,
        Family.CONVOLUTION,
        Family.DEPTHWISE,
        Family.POINTWISE,
        Family.NORMALIZATION,
        Family.SOFTMAX,
        Family.REDUCTION,
        Family.LOOKUP,
    )
)
"""Families whose kernels can apply further element-wise operators to their result."""


def fuse(operators: Sequence[Operator]) -> list[Operator]:
    """Return the operators of the compiled model in order."""
    consumers: dict[str, int] = {}
    for operator in operators:
        for name in set(operator.inputs):
            consumers[name] = consumers.get(name, 0) + 1
    groups: list[Operator] = []
    producer: dict[str, int] = {}
    sizes = {
        name: operator.written_bytes // max(len(operator.outputs), 1)
        for operator in operators
        for name in operator.outputs
    }
    for operator in operators:
        head = _head(operator, groups, producer, consumers)
        if head is not None:
            groups[head] = _joined(groups[head], operator, producer, sizes, head)
        else:
            head = len(groups)
            groups.append(_alone(operator))
        for name in operator.outputs:
            producer[name] = head
    return groups


def _head(
    operator: Operator, groups: Sequence[Operator], producer: dict[str, int], consumers: dict[str, int]
) -> int | None:
    """Return the kernel that this operator joins: the latest producer of its inputs, if no other operator reads it."""
    if operator.family is not Family.POINTWISE and operator.type not in _FOLDED:
        return None
    candidates = [
        producer[name]
        for name in operator.inputs
        if name in producer and consumers[name] == 1 and groups[producer[name]].family in _HEADS
    ]
    return max(candidates, default=None)


def _joined(
    group: Operator, operator: Operator, producer: dict[str, int], sizes: dict[str, int], head: int
) -> Operator:
    """Return a kernel that also computes this operator: it reads its other inputs, and writes only the last result."""
    others = sum(sizes.get(name, 0) for name in operator.inputs if producer.get(name) not in {None, head})
    return msgspec.structs.replace(
        group,
        outputs=operator.outputs,
        read_bytes=group.read_bytes + others,
        weight_bytes=group.weight_bytes + operator.weight_bytes,
        written_bytes=operator.written_bytes,
        elements=max(operator.elements, group.elements) if group.gemm is None else group.elements,
        has_bias=False,
    )


def _alone(operator: Operator) -> Operator:
    if operator.type in {"Concat", "aten.cat"}:
        return msgspec.structs.replace(operator, family=Family.VIEW)
    return msgspec.structs.replace(operator, has_bias=False)
