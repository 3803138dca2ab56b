"""Operators of a model with everything that their kernels depend on, independent of the file they came from."""

from __future__ import annotations

import enum
import math

from cotenant.units.value import Value


class Family(enum.Enum):
    """Operators whose kernels are alike. Corrections, uncertainties and reports are kept by family."""

    MATMUL = "matmul"
    CONVOLUTION = "convolution"
    DEPTHWISE = "depthwise"
    POINTWISE = "pointwise"
    NORMALIZATION = "normalization"
    SOFTMAX = "softmax"
    REDUCTION = "reduction"
    POOLING = "pooling"
    MOVE = "move"
    LOOKUP = "lookup"
    SORT = "sort"
    RECURRENT = "recurrent"
    OPTIMIZER = "optimizer"
    VIEW = "view"
    UNSUPPORTED = "unsupported"


class Gemm(Value, frozen=True):
    """A product of an m x k and a k x n matrix, `batch` times."""

    m: int
    n: int
    k: int
    batch: int = 1

    @property
    def flops(self) -> float:
        """Return multiplications and additions."""
        return 2.0 * self.m * self.n * self.k * self.batch


class Window(Value, frozen=True):
    """The window of a convolution or of pooling."""

    kernel: tuple[int, ...]
    stride: int = 1
    groups: int = 1
    dilation: int = 1

    @property
    def area(self) -> int:
        """Return the number of positions of the window."""
        return math.prod(self.kernel)


class Operator(Value, frozen=True):
    """One operator call. Bytes are those of its tensors; views move none."""

    name: str
    type: str
    family: Family
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    read_bytes: int = 0
    """Bytes of activations that it reads."""
    weight_bytes: int = 0
    """Bytes of constants that it reads."""
    written_bytes: int = 0
    elements: int = 0
    """Elements of its outputs."""
    item_bytes: int = 4
    gemm: Gemm | None = None
    window: Window | None = None
    steps: int = 1
    """Number of dependent repetitions, as the time steps of a recurrent layer."""
    passes: float = 1.0
    """How often the kernel reads its input, as a softmax whose rows do not fit on chip."""
    parameters: int = 0
    """Trainable elements among its constants."""
    has_bias: bool = False
    kernels: int = 1
    """Number of kernels of the same kind that a framework launches for it."""
    host_only: bool = False
    """It computes shapes on the host: it takes host time and launches nothing."""
    reason: str = ""
    """Why its rule could not be applied, if there is one."""

    @property
    def flops(self) -> float:
        """Return the arithmetic of the operator: products count two per multiply-add, others one per element."""
        if self.gemm is not None:
            return self.gemm.flops * self.steps
        area = self.window.area if self.window is not None else 1
        return float(self.elements * area)

    @property
    def moved_bytes(self) -> float:
        """Return the device memory traffic without any reuse by other operators."""
        return self.read_bytes * self.passes + self.weight_bytes + self.written_bytes
