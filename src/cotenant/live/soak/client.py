"""What does a small CUDA program need? libcuda.so.1 as any program finds it, one context, kernels that take time."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

OUT_OF_MEMORY: Final = 2
_IMAGE: Final = b"softgpu-image 1\nkernel spin\n params 8\n duration_param 0\n"
_THREADS: Final = 128


class CudaError(Exception):
    """A call of the driver failed."""

    def __init__(self, call: str, code: int) -> None:
        """Keep both for whoever must tell."""
        self.code = code
        super().__init__(f"{call} gave {code}")


class CudaClient:
    """One process with a context on its first device."""

    def __init__(self) -> None:
        """Make the context and load the kernel."""
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._kept: list[ctypes.c_uint64] = []  # what prepared launches point at
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
        module, self._kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), _IMAGE)
        self.call("cuModuleGetFunction", ctypes.byref(self._kernel), module, b"spin")

    def call(self, name: str, *arguments: object) -> None:
        """Any call of the driver; raises `CudaError`."""
        code = getattr(self._driver, name)(*arguments)
        if code:
            raise CudaError(name, code)

    def try_call(self, name: str, *arguments: object) -> bool:
        """One that may be refused."""
        return bool(getattr(self._driver, name)(*arguments) == 0)

    def launch(self, kernel_ns: int, blocks: int = 80, stream: ctypes.c_void_p | None = None) -> None:
        """A kernel that takes so long."""
        value = ctypes.c_uint64(kernel_ns)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        self.call("cuLaunchKernel", self._kernel, blocks, 1, 1, _THREADS, 1, 1, 0, stream, parameters, None)

    def prepared(self, kernel_ns: int, blocks: int, stream: ctypes.c_void_p | None) -> Callable[[], int]:
        """The same launch again and again, with as little as possible around it; gives the driver's code."""
        value = ctypes.c_uint64(kernel_ns)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        shape = [ctypes.c_uint(number) for number in (blocks, 1, 1, _THREADS, 1, 1, 0)]
        launch, arguments = self._driver.cuLaunchKernel, (self._kernel, *shape, stream, parameters, None)
        self._kept.append(value)
        return lambda: int(launch(*arguments))

    def wait(self) -> None:
        """Until all of it is over."""
        self.call("cuCtxSynchronize")

    def allocate(self, size_bytes: int) -> int:
        """Device memory."""
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size_bytes))
        return pointer.value

    def free(self, pointer: int) -> None:
        """Give it back."""
        self.call("cuMemFree_v2", ctypes.c_uint64(pointer))

    def write(self, pointer: int, data: bytes) -> None:
        """From the host to the device."""
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), data, ctypes.c_size_t(len(data)))

    def read(self, pointer: int, size_bytes: int) -> bytes:
        """From the device to the host."""
        data = ctypes.create_string_buffer(size_bytes)
        self.call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(pointer), ctypes.c_size_t(size_bytes))
        return data.raw
