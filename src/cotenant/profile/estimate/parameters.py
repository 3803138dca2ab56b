"""Parameters of the duration model. Those of `FITTED` come from `cotenant-lab study models --fit`.

Each has a physical meaning and holds for all models and GPUs; what differs between boards is in `devices`.
"""

from __future__ import annotations

from typing import Final

from cotenant.profile.estimate.operator import Family
from cotenant.units.value import Value


class DurationParameters(Value, frozen=True, kw_only=True):
    """Efficiencies, fixed times and energy of kernels."""

    matmul: float = 0.96
    """Fraction of the cores' peak that a large product in fp32 reaches."""
    tensor: float = 0.72
    """The same for tensor cores."""
    convolution: float = 0.90
    """Rate of a convolution relative to a product of the same size."""
    tensor_convolution: float = 1.06
    """The same on tensor cores."""
    winograd: float = 1.88
    """Gain of 3x3 convolutions with stride 1 in fp32, whose transformed form has fewer multiplications."""
    grouped: float = 1.0
    """Rate of a convolution in groups, relative to one of the same arithmetic without."""
    depthwise: float = 0.40
    """Fraction of the memory bandwidth of a depthwise convolution."""
    bandwidth: float = 0.82
    """Fraction of the memory bandwidth of a large element-wise kernel."""
    rows: float = 0.5
    """The same for kernels that reduce rows: normalization, reductions, pooling."""
    moves: float = 0.5
    """The same for kernels that change the order of elements: copies of strided tensors, lookups."""
    kernel_ns: float = 2500.0
    """Time of the smallest kernel, and the time that a larger one takes to start and to end."""
    depth: float = 32.0
    """Start and end of the inner loop of a product, in iterations."""
    pascal_watt: float = 31e9
    """Sustained fp32 operations per joule: boards with a small power limit run below their boost clock."""
    turing_watt: float = 71e9
    """The same for Volta and Turing."""
    ada_watt: float = 164e9
    """The same for Ampere, Ada and Hopper."""
    tile: float = 16.0
    """How fast the efficiency of a tile falls with its size: loads per operation grow with 1/rows + 1/columns."""

    def flops_per_watt(self, generation: str) -> float:
        """Return the operations per joule of a generation of GPUs."""
        if generation == "pascal":
            return self.pascal_watt
        return self.turing_watt if generation in {"volta", "turing"} else self.ada_watt


FITTED: Final = DurationParameters()

ENERGY_GAIN: Final = {"fp32": 1.0, "tf32": 5.0, "fp16": 10.0, "fp16-short": 10.0, "bf16": 10.0, "int8": 20.0}
"""Operations per joule of other arithmetic relative to fp32: our choice, near the ratios of the data sheets."""

DOUBT: Final = {
    Family.MATMUL: 0.20,
    Family.CONVOLUTION: 0.30,
    Family.DEPTHWISE: 0.45,
    Family.POINTWISE: 0.15,
    Family.NORMALIZATION: 0.25,
    Family.SOFTMAX: 0.25,
    Family.REDUCTION: 0.35,
    Family.POOLING: 0.35,
    Family.MOVE: 0.35,
    Family.LOOKUP: 0.40,
    Family.SORT: 0.70,
    Family.RECURRENT: 0.45,
    Family.OPTIMIZER: 0.30,
    Family.VIEW: 0.0,
    Family.UNSUPPORTED: 1.2,
}
"""Standard deviation of the logarithm of measured over estimated time, common to all kernels of a family."""
DEVICE_DOUBT: Final = 0.12
"""The same for a whole device: clocks, power and drivers differ between machines."""
HOST_DOUBT: Final = 0.35
"""The same for the time of a framework on the host."""
