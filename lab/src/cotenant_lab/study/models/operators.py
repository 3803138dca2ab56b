"""Errors of single operators: the kernels of BERT and GPT-2 that NeuSight timed alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.profile.estimate.devices import GPUS
from cotenant.profile.estimate.duration import kernel_time
from cotenant.profile.estimate.kernels import KernelWork, forward_kernels
from cotenant.profile.estimate.kernels import Precision as Arithmetic
from cotenant.profile.estimate.operator import Family, Gemm, Operator
from cotenant_lab.study.models.cases import OperatorCase

_TIMER_NS: Final = 6000.0
"""The time of an empty operator in these measurements: host and timer."""
_FAMILIES: Final = {"softmax": Family.SOFTMAX, "normalization": Family.NORMALIZATION, "pointwise": Family.POINTWISE}


class OperatorError(msgspec.Struct, frozen=True, kw_only=True):
    """Relative errors of one kind of operator on one GPU."""

    family: str
    gpu: str
    n: int
    error_median: float
    ratio_median: float
    """Estimated over measured."""


def operator_errors(cases: Sequence[OperatorCase]) -> list[OperatorError]:
    """Return the errors by kind and GPU."""
    groups: dict[tuple[str, str], list[float]] = {}
    for case in cases:
        estimated_ns = kernel_time(work_of(case), GPUS[case.gpu]).device_ns + _TIMER_NS
        groups.setdefault((case.family, case.gpu), []).append(estimated_ns / (case.measured_ms * 1e6))
    return [
        OperatorError(
            family=family,
            gpu=gpu,
            n=len(ratios),
            error_median=round(statistics.median(abs(ratio - 1) for ratio in ratios), 4),
            ratio_median=round(statistics.median(ratios), 4),
        )
        for (family, gpu), ratios in sorted(groups.items())
    ]


def work_of(case: OperatorCase) -> KernelWork:
    """Return the kernel of a timed operator."""
    elements = math.prod(case.output)
    if case.family in _FAMILIES:
        # A scalar of the formula is listed as a tensor of one element.
        read = sum(math.prod(shape) for shape in case.inputs if math.prod(shape) > 1)
        operator = Operator(
            case.operator,
            case.family,
            _FAMILIES[case.family],
            read_bytes=4 * read,
            written_bytes=4 * elements,
            elements=elements,
        )
        return forward_kernels(operator, Arithmetic.FP32)[0]
    first = case.inputs[1] if case.family == "addmm" else case.inputs[0]
    inner, columns = first[-1], case.output[-1]
    if case.family == "bmm":
        rows, batch = case.output[-2], math.prod(case.output[:-2])
    else:
        rows, batch = elements // columns, 1
    operator = Operator(
        case.operator,
        "MatMul",
        Family.MATMUL,
        read_bytes=4 * math.prod(first),
        weight_bytes=4 * inner * columns * batch,
        written_bytes=4 * elements,
        elements=elements,
        gemm=Gemm(rows, columns, inner, batch),
    )
    return forward_kernels(operator, Arithmetic.FP32)[0]
