"""Replay models: kernels as a function of the batch size, and memory. Nothing is computed."""

from __future__ import annotations

from math import ceil

from cotenant.serve.model.tensor import TensorSpec
from cotenant.units.instant import Duration
from cotenant.units.value import Value


class ReplayKernel(Value, frozen=True):
    """One kernel of a run."""

    name: str
    block_ns: Duration
    blocks: int = 0
    """Blocks that do not depend on the batch."""
    blocks_per_row: float = 0.0
    threads: int = 256
    per_sm: int = 2
    """Blocks that fit on an SM."""

    def blocks_of(self, rows: int) -> int:
        """Return the number of blocks for a batch."""
        return max(1, ceil(self.blocks + self.blocks_per_row * rows))


class ReplayModel(Value, frozen=True):
    """A sequence of kernels that is launched `rounds` times per run, between a copy to the device and a copy back."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    kernels: tuple[ReplayKernel, ...]
    rounds: int
    max_batch: int
    weights_bytes: int
    copy_in_bytes: int
    """Bytes per row."""
    copy_out_bytes: int

    @property
    def batches(self) -> range:
        """Return the numbers of rows that a run may have; a model without batching is replayed as one row."""
        return range(1, max(1, self.max_batch) + 1)

    def kernels_ns(self, rows: int, sms: int) -> Duration:
        """Return the time of the kernels alone on a number of SMs, by waves of blocks, without the copies."""
        per_round = sum(
            -(-kernel.blocks_of(rows) // (sms * kernel.per_sm)) * kernel.block_ns for kernel in self.kernels
        )
        return self.rounds * per_round
