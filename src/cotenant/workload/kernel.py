"""Identity of device work: the same function with another grid is another kernel."""

from __future__ import annotations

import enum
import re
from typing import Final, TypeAlias

from cotenant.units.value import Value

Extent: TypeAlias = tuple[int, int, int]

# Limits of one SM for compute capability 7.0 and 8.0 (CUDA C programming guide, table of technical
# specifications); 8.6 and 8.9 hold fewer threads and blocks.
_SM_THREADS: Final = 2048
_SM_BLOCKS: Final = 32
_SM_REGISTERS: Final = 65536
_SM_SHARED_BYTES: Final = 96 * 1024


# Parts of the names of kernels from libraries for matrix products and convolutions (cuBLAS, cuDNN), which contain
# machine code only.
_LIBRARY: Final = re.compile(
    r"gemm|gemv|cutlass|cublas|cudnn|xmma|conv(?!ert)|wgrad|dgrad|winograd|implicit_|s\d*884|s\d*1688|s\d*16816|fft|magma",
    re.IGNORECASE,
)


class WorkKind(enum.Enum):
    """Kind of a launch. A graph is one launch, whatever it contains."""

    KERNEL = "kernel"
    GRAPH = "graph"
    COPY = "copy"
    MEMSET = "memset"


class KernelIdentity(Value, frozen=True):
    """Function name, grid, block and dynamic shared memory: launches with equal values are comparable."""

    function: str
    grid: Extent
    block: Extent
    shared_bytes: int = 0
    work: WorkKind = WorkKind.KERNEL

    @property
    def blocks(self) -> int:
        """Return the number of thread blocks of one launch."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def is_of_library(self) -> bool:
        """Return whether its name is that of a matrix product or convolution, which libraries ship as machine code."""
        return _LIBRARY.search(self.function) is not None

    @property
    def threads_per_block(self) -> int:
        """Return the number of threads of one block."""
        return self.block[0] * self.block[1] * self.block[2]

    def resident_blocks(self, registers: int) -> int:
        """Return how many blocks fit on one SM of a data-centre GPU; 0 if it is not a kernel or does not fit."""
        if self.work is not WorkKind.KERNEL or self.threads_per_block < 1:
            return 0
        by_threads = min(_SM_BLOCKS, _SM_THREADS // self.threads_per_block)
        by_registers = _SM_REGISTERS // (registers * self.threads_per_block) if registers > 0 else by_threads
        by_shared = _SM_SHARED_BYTES // self.shared_bytes if self.shared_bytes > 0 else by_threads
        return max(min(by_threads, by_registers, by_shared), 1) if by_threads else 0
