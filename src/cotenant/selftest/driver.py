"""The CUDA driver API as the CUDA runtime uses it: entry points come from cuGetProcAddress, with version and flags.

Only the standard library is needed, so a program of the self-test runs wherever a driver is installed.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Final

DRIVER_NAME: Final = "libcuda.so.1"
PER_THREAD_STREAM: Final = 2  # CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
OUT_OF_MEMORY: Final = 2  # CUDA_ERROR_OUT_OF_MEMORY
NOT_FOUND: Final = 500  # CUDA_ERROR_NOT_FOUND
_LEGACY_STREAM: Final = 1  # CU_GET_PROC_ADDRESS_LEGACY_STREAM
_VERSION: Final = 12_000
"""The interface version that is requested: that of CUDA 12.0, in which all functions used here exist."""
_COMPUTE_MAJOR: Final = 75
_COMPUTE_MINOR: Final = 76
_TURING: Final = (7, 5)

_FAT_MAGIC: Final = 0xBA55ED50
_WRAPPER_MAGIC: Final = 0x466243B1
_PTX_ENTRY: Final = 1
_PTX_FLAGS: Final = 0x11  # 64 bits, made on Linux

KERNEL: Final = b"cotenant_selftest_double"
ELEMENTS: Final = 4096
THREADS: Final = 256
_PTX: Final = """
.version {version}
.target {target}
.address_size 64
.visible .entry cotenant_selftest_double(.param .u64 data, .param .u32 count)
{{
    .reg .pred %outside;
    .reg .b32 %r<6>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [data];
    ld.param.u32 %r1, [count];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r2, %r2, %r3, %r4;
    setp.ge.u32 %outside, %r2, %r1;
    @%outside bra DONE;
    cvta.to.global.u64 %rd1, %rd1;
    mul.wide.u32 %rd2, %r2, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.u32 %r5, [%rd3];
    shl.b32 %r5, %r5, 1;
    st.global.u32 [%rd3], %r5;
DONE:
    ret;
}}
"""


class DriverCallError(Exception):
    """A call of the driver failed."""

    def __init__(self, name: str, code: int) -> None:
        """Keep the function and its result code."""
        self.name = name
        self.code = code
        super().__init__(f"{name} returned {code}")


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig of cuLaunchKernelEx."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class Driver:
    """The functions of the installed driver."""

    def __init__(self) -> None:
        """Load the library and find cuGetProcAddress; raise OSError if there is no driver."""
        self._library = ctypes.CDLL(DRIVER_NAME)
        self._functions: dict[tuple[str, int], ctypes._CFunctionType] = {}
        self.try_call("cuInit", 0)

    def has(self, name: str, flags: int = _LEGACY_STREAM) -> bool:
        """Return whether the driver has a function."""
        return self._find(name, flags) is not None

    def query(self, name: str, version: int, flags: int = _LEGACY_STREAM) -> tuple[int, int]:
        """Return the result code of cuGetProcAddress_v2 for an interface version, and the status that it reports."""
        address, found = ctypes.c_void_p(), ctypes.c_int(-1)
        query = getattr(self._library, "cuGetProcAddress_v2", None)
        if query is None:
            return NOT_FOUND, -1
        code = query(name.encode(), ctypes.byref(address), version, ctypes.c_uint64(flags), ctypes.byref(found))
        return int(code), found.value

    def try_call(self, name: str, *arguments: object, flags: int = _LEGACY_STREAM) -> int:
        """Call a function and return its result code; a function that the driver does not have gives NOT_FOUND."""
        function = self._find(name, flags)
        return NOT_FOUND if function is None else int(function(*arguments))

    def call(self, name: str, *arguments: object, flags: int = _LEGACY_STREAM) -> None:
        """Call a function and raise DriverCallError if it fails."""
        code = self.try_call(name, *arguments, flags=flags)
        if code:
            raise DriverCallError(name, code)

    def _find(self, name: str, flags: int) -> ctypes._CFunctionType | None:
        if (name, flags) not in self._functions:
            address = ctypes.c_void_p()
            found = ctypes.c_int()
            query = getattr(self._library, "cuGetProcAddress_v2", None)
            if query is None:  # a driver before CUDA 12.0
                code = self._library.cuGetProcAddress(
                    name.encode(), ctypes.byref(address), 11_030, ctypes.c_uint64(flags)
                )
            else:
                code = query(
                    name.encode(), ctypes.byref(address), _VERSION, ctypes.c_uint64(flags), ctypes.byref(found)
                )
            if code or not address.value:
                return None
            self._functions[name, flags] = ctypes.CFUNCTYPE(ctypes.c_int)(address.value)
        return self._functions[name, flags]


class Context:
    """The primary context of the first visible device, with one kernel that doubles 4-byte numbers."""

    def __init__(self) -> None:
        """Retain the context and load the kernel from PTX."""
        self.driver = Driver()
        device = ctypes.c_int()
        self.driver.call("cuDeviceGet", ctypes.byref(device), 0)
        self.device = device.value
        self._context = ctypes.c_void_p()
        self.driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self.device)
        self.driver.call("cuCtxSetCurrent", self._context)
        module, self.kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self.driver.call("cuModuleLoadData", ctypes.byref(module), ptx(self.compute_capability()))
        self.driver.call("cuModuleGetFunction", ctypes.byref(self.kernel), module, KERNEL)

    def compute_capability(self) -> tuple[int, int]:
        """Return the architecture of the device, such as (8, 0)."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        for value, attribute in ((major, _COMPUTE_MAJOR), (minor, _COMPUTE_MINOR)):
            self.driver.call("cuDeviceGetAttribute", ctypes.byref(value), attribute, self.device)
        return major.value, minor.value

    def allocate(self, size_bytes: int) -> ctypes.c_uint64:
        """Allocate device memory."""
        pointer = ctypes.c_uint64()
        self.driver.call("cuMemAlloc", ctypes.byref(pointer), ctypes.c_size_t(size_bytes))
        return pointer

    def launch(
        self,
        data: ctypes.c_uint64,
        *,
        stream: ctypes.c_void_p | None = None,
        flags: int = _LEGACY_STREAM,
        extended: bool = False,
        blocks: int = ELEMENTS // THREADS,
        kernel: ctypes.c_void_p | None = None,
    ) -> int:
        """Launch the kernel by cuLaunchKernel or, if `extended`, by cuLaunchKernelEx; return the result code.

        `kernel` is another handle of it, such as one of a library.
        """
        function = kernel or self.kernel
        count = ctypes.c_uint32(ELEMENTS)
        parameters = (ctypes.c_void_p * 2)(ctypes.addressof(data), ctypes.addressof(count))
        if not extended:
            shape = (blocks, 1, 1, THREADS, 1, 1, 0)
            return self.driver.try_call("cuLaunchKernel", function, *shape, stream, parameters, None, flags=flags)
        config = LaunchConfig((blocks, 1, 1), (THREADS, 1, 1), 0, stream, None, 0)
        return self.driver.try_call("cuLaunchKernelEx", ctypes.byref(config), function, parameters, None, flags=flags)

    def wait(self) -> None:
        """Wait until all work of the context has ended."""
        self.driver.call("cuCtxSynchronize")


def ptx(compute_capability: tuple[int, int]) -> bytes:
    """Return the kernel's PTX for a target that every driver for the device accepts."""
    is_recent = compute_capability >= _TURING
    return _PTX.format(version="6.3" if is_recent else "6.0", target="sm_75" if is_recent else "sm_50").encode()


def fat_binary(compute_capability: tuple[int, int]) -> ctypes.Array[ctypes.c_char]:
    """Return a fat binary as compilers embed it in programs, with the PTX of the kernel as its only entry."""
    text = ptx(compute_capability) + b"\0"
    text += bytes(-len(text) % 8)
    architecture = 75 if compute_capability >= _TURING else 50
    entry = struct.pack(
        "<HHIQIIHHIIIQQQ", _PTX_ENTRY, 0x101, 64, len(text), 0, 0, 0, 6, architecture, 0, 0, _PTX_FLAGS, 0, 0
    )
    head = struct.pack("<IHHQ", _FAT_MAGIC, 1, 16, len(entry) + len(text))
    binary = head + entry + text
    return ctypes.create_string_buffer(binary, len(binary))


class FatBinaryWrapper(ctypes.Structure):
    """The structure that the CUDA runtime passes to the driver for a fat binary."""

    _fields_ = (
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("data", ctypes.c_void_p),
        ("unused", ctypes.c_void_p),
    )

    @classmethod
    def of(cls, binary: ctypes.Array[ctypes.c_char]) -> FatBinaryWrapper:
        """Return the wrapper of a fat binary, which must outlive it."""
        return cls(_WRAPPER_MAGIC, 1, ctypes.addressof(binary), None)
