"""Which piece of device work is this? The same function with another grid is another kernel."""

from __future__ import annotations

import enum
from typing import TypeAlias

from cotenant.domain.value import Value

Extent: TypeAlias = tuple[int, int, int]


class Work(enum.Enum):
    """What a launch asks of the device. A graph is one piece of work, whatever it holds."""

    KERNEL = "kernel"
    GRAPH = "graph"
    COPY = "copy"
    MEMSET = "memset"


class KernelIdentity(Value, frozen=True):
    """Function name, grid, block and dynamic shared memory: what makes two launches comparable."""

    function: str
    grid: Extent
    block: Extent
    shared_bytes: int = 0
    work: Work = Work.KERNEL

    @property
    def blocks(self) -> int:
        """How many thread blocks one launch has."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads_per_block(self) -> int:
        """How many threads one block has."""
        return self.block[0] * self.block[1] * self.block[2]
