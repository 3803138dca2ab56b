"""A minimal CUDA client: libcuda.so.1, one context, and kernels of a given duration."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

OUT_OF_MEMORY: Final = 2
_IMAGE: Final = b"softgpu-image 1\nkernel spin\n params 8\n duration_param 0\n"
_THREADS: Final = 128


class CudaError(Exception):
    """A failed call of the driver."""

    def __init__(self, call: str, code: int) -> None:
        """Keep the call and the code."""
        self.code = code
        super().__init__(f"{call} gave {code}")


class CudaClient:
    """One process with a context on its first device."""

    def __init__(self, driver: str = "libcuda.so.1") -> None:
        """Create the context and load the kernel."""
        self._driver = ctypes.CDLL(driver)
        self._launch_arguments: list[ctypes.c_uint64] = []  # arguments that prepared launches point to
        self.call("cuInit", 0)
        device, self._context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuCtxCreate_v2", ctypes.byref(self._context), 0, device)
        module, self._kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), _IMAGE)
        self.call("cuModuleGetFunction", ctypes.byref(self._kernel), module, b"spin")

    def call(self, name: str, *arguments: object) -> None:
        """Call the driver; raise `CudaError` on failure."""
        code = getattr(self._driver, name)(*arguments)
        if code:
            raise CudaError(name, code)

    def try_call(self, name: str, *arguments: object) -> bool:
        """Call the driver; return whether it succeeded."""
        return bool(getattr(self._driver, name)(*arguments) == 0)

    def use_in_thread(self) -> None:
        """Make the context current in the calling thread, which did not create it."""
        self.call("cuCtxSetCurrent", self._context)

    def launch(self, kernel_ns: int, blocks: int = 80, stream: ctypes.c_void_p | None = None) -> None:
        """Launch a kernel of the given duration."""
        value = ctypes.c_uint64(kernel_ns)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        self.call("cuLaunchKernel", self._kernel, blocks, 1, 1, _THREADS, 1, 1, 0, stream, parameters, None)

    def prepared(self, kernel_ns: int, blocks: int, stream: ctypes.c_void_p | None) -> Callable[[], int]:
        """Return a function that repeats one launch with minimal overhead and returns the driver's code."""
        value = ctypes.c_uint64(kernel_ns)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        shape = [ctypes.c_uint(number) for number in (blocks, 1, 1, _THREADS, 1, 1, 0)]
        launch, arguments = self._driver.cuLaunchKernel, (self._kernel, *shape, stream, parameters, None)
        self._launch_arguments.append(value)
        return lambda: int(launch(*arguments))

    def wait(self) -> None:
        """Wait until all work is done."""
        self.call("cuCtxSynchronize")

    def allocate(self, size_bytes: int) -> int:
        """Allocate device memory."""
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size_bytes))
        return pointer.value

    def free(self, pointer: int) -> None:
        """Free device memory."""
        self.call("cuMemFree_v2", ctypes.c_uint64(pointer))

    def write(self, pointer: int, data: bytes) -> None:
        """Copy from the host to the device."""
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), data, ctypes.c_size_t(len(data)))

    def read(self, pointer: int, size_bytes: int) -> bytes:
        """Copy from the device to the host."""
        data = ctypes.create_string_buffer(size_bytes)
        self.call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(pointer), ctypes.c_size_t(size_bytes))
        return data.raw
