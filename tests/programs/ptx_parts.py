"""Kernels give the same results in parts of every size as in one launch, bit for bit."""

from __future__ import annotations

import ctypes
import os
import tempfile
from typing import Any

import numpy as np
from cuda.bindings import driver
from cuda_helpers import Part, ok
from ptx_kernels import THREADS, WORDS, Kernel, kernels

from cotenant.hook import parts

WORDS_IN = np.random.default_rng(3).integers(0, 1 << 32, WORDS, dtype=np.uint64).astype(np.uint32)


class Prepared:
    """A loaded kernel and its variant, with memory for their results."""

    def __init__(self, kernel: Kernel) -> None:
        text, (found,) = parts.rewrite(kernel.text.encode())
        reason, variant = found.reason, found.variant
        assert (found.name, kernel.reason in reason, variant is None) == (b"k", True, bool(reason)), (kernel, found)
        assert bool(reason) == bool(kernel.reason), (kernel.name, reason)
        self.kernel, self.grid = kernel, kernel.grid
        self.blocks = kernel.grid[0] * kernel.grid[1] * kernel.grid[2]
        self.source, self.target = ok(driver.cuMemAlloc(WORDS * 4)), ok(driver.cuMemAlloc(WORDS * 4))
        ok(driver.cuMemcpyHtoD(self.source, WORDS_IN, WORDS_IN.nbytes))
        if text is not None and variant is not None:
            self.module = ok(driver.cuModuleLoadData(text))
            self.plain = ok(driver.cuModuleGetFunction(self.module, b"k"))
            self.variant = ok(driver.cuModuleGetFunction(self.module, variant.encode()))

    def _launch(self, function: Any, grid: tuple[int, int, int], part: bytes) -> None:
        values: tuple[Any, ...] = (int(self.source), int(self.target))
        types: tuple[Any, ...] = (ctypes.c_uint64, ctypes.c_uint64)
        if part:
            values, types = (*values, Part.from_buffer_copy(part)), (*types, None)
        ok(driver.cuLaunchKernel(function, *grid, THREADS, 1, 1, self.kernel.shared, 0, (values, types), 0))

    def run(self, size: int) -> tuple[bytes, bytes, list[bytes]]:
        """Return the output, the variable, and the lines printed; `size` 0: in one launch of the kernel itself."""
        variable = b""
        ok(driver.cuMemsetD32(self.target, 0xABABABAB, WORDS))
        if self.kernel.variable:
            pointer, count = ok(driver.cuModuleGetGlobal(self.module, self.kernel.variable.encode()))
            ok(driver.cuMemsetD8(pointer, 1, count))
        with tempfile.TemporaryFile() as printed:
            saved = os.dup(1)
            os.dup2(printed.fileno(), 1)
            for first in range(0, self.blocks, size or self.blocks):
                blocks = min(size or self.blocks, self.blocks - first)
                part = parts.part_parameter(self.grid, first) if size else b""
                self._launch(*((self.variant, (blocks, 1, 1)) if size else (self.plain, self.grid)), part)
            ok(driver.cuCtxSynchronize())
            os.dup2(saved, 1)
            os.close(saved)
            printed.seek(0)
            lines = sorted(printed.read().splitlines())
        out = np.empty(WORDS, np.uint32)
        ok(driver.cuMemcpyDtoH(out, self.target, out.nbytes))
        if self.kernel.variable:
            word = np.empty(count, np.uint8)
            ok(driver.cuMemcpyDtoH(word, pointer, count))
            variable = word.tobytes()
        return out.tobytes(), variable, lines

    def close(self) -> None:
        ok(driver.cuModuleUnload(self.module))
        ok(driver.cuMemFree(self.source))
        ok(driver.cuMemFree(self.target))


def main() -> None:
    ok(driver.cuInit(0))
    ok(driver.cuCtxCreate(None, 0, ok(driver.cuDeviceGet(0))))
    compared = refused = runs = 0
    results: dict[str, Any] = {}
    for kernel in kernels():
        prepared = Prepared(kernel)
        if kernel.reason:
            refused += 1
            continue
        expected = results[kernel.name] = prepared.run(0 if kernel.plain else prepared.blocks)
        assert expected[0] != b"\xab" * WORDS * 4, kernel.name
        assert not kernel.prints or len(expected[2]) == 2 * prepared.blocks, expected[2]
        for size in range(1, prepared.blocks + 1):
            assert prepared.run(size) == expected, (kernel.name, kernel.grid, size)
            runs += 1
        prepared.close()
        compared += 1
    assert results["vector of the grid"] == results["its counterpart"]
    print(f"{compared} kernels, {runs} runs in parts, {refused} refused")


if __name__ == "__main__":
    main()
