"""Rewriting of PTX, so that kernels can be launched in parts of their grid (native/hook/slice)."""

from __future__ import annotations

from cotenant import _native
from cotenant.units.value import Value


class PtxKernel(Value, frozen=True):
    """A kernel of a PTX text."""

    name: bytes
    reason: str
    """Why it cannot be launched in parts; empty: it can."""
    variant: str | None
    """The name of the kernel that computes a part of it; its last parameter is `part_parameter`."""
    parameter_count: int
    parameter_bytes: int


def rewrite(text: bytes) -> tuple[bytes | None, list[PtxKernel]]:
    """Return the text with variants of its eligible kernels, or None if it has none, and all kernels."""
    rewritten, kernels = _native.ptx_rewrite(text)
    return rewritten, [PtxKernel(*kernel) for kernel in kernels]


def part_parameter(grid: tuple[int, int, int], first: int) -> bytes:
    """Return the last parameter of a variant, for a launch over the blocks of a grid from this one on."""
    return _native.ptx_part(grid, first)
