"""Code that the test programs share: checked bindings, and an image of computing and of timed kernels."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

from cuda.bindings import driver

IMAGE = b"""softgpu-image 1
kernel vecadd
  builtin vecadd
  block_ns 2000
kernel saxpy
  builtin saxpy
  block_ns 2000
kernel gemm
  builtin gemm
  block_ns 20000
kernel reduce
  builtin reduce
  block_ns 5000
kernel fill
  builtin fill
  block_ns 1000
kernel spin           # takes as many nanoseconds as its parameter says
  params 8
  duration_param 0
  blocks_per_sm 8
"""


def ok(answer: tuple[Any, ...]) -> Any:
    """Return the values of a call that must succeed."""
    assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer[0]
    return answer[1] if len(answer) == 2 else answer[1:]


def code(answer: tuple[Any, ...]) -> str:
    """Return the name of the result code of a call."""
    return str(answer[0].name)


class Part(ctypes.Structure):
    """The last parameter of a kernel's variant that is launched in parts."""

    _fields_ = (("words", ctypes.c_uint32 * 8),)


class Gpu:
    """A context on device 0 and the functions of the image."""

    def __init__(self, flags: int = 0) -> None:
        ok(driver.cuInit(0))
        self.device = ok(driver.cuDeviceGet(0))
        self.context = ok(driver.cuCtxCreate(None, flags, self.device))
        self.module = ok(driver.cuModuleLoadData(IMAGE))

    def function(self, name: str) -> Any:
        return ok(driver.cuModuleGetFunction(self.module, name.encode()))

    def launch(
        self, function: Any, values: tuple[Any, ...], types: tuple[Any, ...], *, blocks: int = 4, stream: Any = 0
    ) -> None:
        ok(driver.cuLaunchKernel(function, blocks, 1, 1, 256, 1, 1, 0, stream, (values, types), 0))

    def spin(self, nanoseconds: int, stream: Any = 0, *, blocks: int = 80) -> None:
        self.launch(self.function("spin"), (nanoseconds,), (ctypes.c_uint64,), blocks=blocks, stream=stream)

    @contextlib.contextmanager
    def hold(self, stream: Any) -> Iterator[None]:
        """Keep work that is queued on the stream meanwhile from starting, however long the host takes."""
        pinned = ok(driver.cuMemHostAlloc(4, 0))  # not freed, because that would wait for all queued work
        word = ctypes.cast(int(pinned), ctypes.POINTER(ctypes.c_uint32))
        word[0] = 0
        ok(driver.cuStreamWaitValue32(stream, ok(driver.cuMemHostGetDevicePointer(pinned, 0)), 1, 0))
        yield
        word[0] = 1

    def upload(self, array: Any) -> Any:
        pointer = ok(driver.cuMemAlloc(array.nbytes))
        ok(driver.cuMemcpyHtoD(pointer, array, array.nbytes))
        return pointer
