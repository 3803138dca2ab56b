"""What does a model that is only played do? Kernels as a function of the batch, and memory; nothing is computed."""

from __future__ import annotations

from math import ceil

from cotenant.domain.instant import Duration
from cotenant.domain.tensor import TensorSpec
from cotenant.domain.value import Value


class ReplayKernel(Value, frozen=True):
    """One kernel of a run."""

    name: str
    block_ns: Duration
    blocks: int = 0
    """Of any batch."""
    blocks_per_row: float = 0.0
    threads: int = 256
    per_sm: int = 2
    """Blocks of it that fit an SM."""

    def blocks_of(self, rows: int) -> int:
        """Its grid for a batch of so many rows."""
        return max(1, ceil(self.blocks + self.blocks_per_row * rows))


class ReplayModel(Value, frozen=True):
    """A stream of kernels, played `rounds` times for each run, between a copy to the device and one back."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    kernels: tuple[ReplayKernel, ...]
    rounds: int
    max_batch: int
    weights_bytes: int
    copy_in_bytes: int
    """Of a row."""
    copy_out_bytes: int

    @property
    def batches(self) -> range:
        """The numbers of rows that a run may have; a model without batches is played as one row, whatever comes."""
        return range(1, max(1, self.max_batch) + 1)

    def kernels_ns(self, rows: int, sms: int) -> Duration:
        """What its kernels take alone on so many SMs, by the waves of their grids; copies are left out."""
        per_round = sum(-(-one.blocks_of(rows) // (sms * one.per_sm)) * one.block_ns for one in self.kernels)
        return self.rounds * per_round
