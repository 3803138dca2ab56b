"""Comparison of an estimated and a measured profile by family: their kernels have different names."""

from __future__ import annotations

from typing import Final

from cotenant.profile.estimate.operator import Family
from cotenant.profile.profile import KernelTiming, Profile
from cotenant.units.value import Value
from cotenant.workload.kernel import WorkKind

_WORDS: Final[tuple[tuple[Family, tuple[str, ...]], ...]] = (
    (Family.OPTIMIZER, ("multi_tensor", "optimizer", "adam", "sgd", "lamb")),
    (Family.DEPTHWISE, ("depthwise",)),
    (Family.CONVOLUTION, ("conv", "implicit_gemm", "winograd", "cudnn", "dgrad", "wgrad", "im2col", "nchw", "nhwc")),
    (Family.MATMUL, ("gemm", "cutlass", "gemv", "splitk", "cublas", "matmul", "dot_kernel", "flash", "fmha", "sgemm")),
    (Family.RECURRENT, ("lstm", "gru", "rnn", "recurrent")),
    (Family.SOFTMAX, ("softmax",)),
    (Family.NORMALIZATION, ("norm", "bn_fw", "bn_bw", "welford")),
    (Family.POOLING, ("pool",)),
    (Family.SORT, ("sort", "topk", "scan")),
    (Family.LOOKUP, ("index", "gather", "scatter", "embedding")),
    (Family.MOVE, ("copy", "cat", "transpose", "permute", "memcpy", "memset", "pad", "fill")),
    (Family.REDUCTION, ("reduce", "argmax", "sum_")),
    (Family.POINTWISE, ("elementwise", "pointwise", "relu", "gelu", "add", "mul", "sigmoid", "dropout", "where")),
)  # fmt: skip
"""Parts of kernel names of PyTorch, cuDNN, cuBLAS, TensorRT and of our estimates, tried in order."""


class FamilyChange(Value, frozen=True):
    """Device time of one family per request in two profiles; 0: it does not occur."""

    family: str
    before_ns: float
    after_ns: float
    before_kernels: float
    after_kernels: float
    ratio: float | None
    """After divided by before."""


def family_of(timing: KernelTiming) -> Family:
    """Return the family that the name of a kernel shows."""
    if timing.kernel.work in {WorkKind.COPY, WorkKind.MEMSET}:
        return Family.MOVE
    name = timing.kernel.function.lower()
    return next((family for family, words in _WORDS if any(word in name for word in words)), Family.UNSUPPORTED)


def family_difference(before: Profile, after: Profile, requests: int = 0) -> list[FamilyChange]:
    """Return device times per request by family, the longest first.

    `requests` is the number of requests in the later profile; 0: the launches of its least frequent kernel.
    """
    sides = [_by_family(before, 0), _by_family(after, requests)]
    rows = []
    for family in dict.fromkeys((*sides[0], *sides[1])):
        (first_ns, first), (second_ns, second) = (side.get(family, (0.0, 0.0)) for side in sides)
        ratio = second_ns / first_ns if first_ns and second_ns else None
        rows.append(FamilyChange(family.value, first_ns, second_ns, first, second, ratio))
    return sorted(rows, key=lambda row: -max(row.before_ns, row.after_ns))


def _by_family(profile: Profile, requests: int) -> dict[Family, tuple[float, float]]:
    timed = [timing for timing in profile.timings if timing.device.count]
    count = requests or min((timing.launches for timing in timed), default=1) or 1
    times: dict[Family, tuple[float, float]] = {}
    for timing in timed:
        family = family_of(timing)
        device_ns, kernels = times.get(family, (0.0, 0.0))
        times[family] = (device_ns + timing.expected_ns / count, kernels + timing.launches / count)
    return times
