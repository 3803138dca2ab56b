"""Images of every kind are linked, with all kernels and variables; a duplicate kernel is rejected and logged."""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver
from cuda_helpers import Gpu, code, ok

gpu = Gpu()
Kind, Option = driver.CUjitInputType, driver.CUjit_option
PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .b8 table[12];
.visible .entry first(.param .u64 a, .param .u8 b, .param .u64 c)
{
  ret;
}
"""
OTHER = PTX.replace(b"first", b"second").replace(b"table[12]", b"lookup[7]")
TEXT = b"""softgpu-image 1
variable start 8 0102030405060708
kernel fill
  builtin fill
  block_ns 1000
kernel timed
  params 8
  duration_param 0
  registers 77
  jitter 0.5%
"""
library = ctypes.CDLL("libcuda.so.1")


def add(state: Any, kind: Any, data: bytes, name: bytes = b"x") -> str:
    return code(driver.cuLinkAddData(state, kind, data, len(data), name, 0, [], []))


def link(*inputs: tuple[Any, bytes]) -> bytes:
    state = ok(driver.cuLinkCreate(0, [], []))
    for kind, data in inputs:
        assert add(state, kind, data) == "CUDA_SUCCESS"
    image, size = ok(driver.cuLinkComplete(state))
    copied = ctypes.string_at(image, size)
    again, same = ok(driver.cuLinkComplete(state))
    assert (again, same) == (image, size)
    assert add(state, Kind.CU_JIT_INPUT_PTX, PTX) == "CUDA_ERROR_INVALID_VALUE"
    ok(driver.cuLinkDestroy(state))
    assert code(driver.cuLinkDestroy(state)) == "CUDA_ERROR_INVALID_HANDLE"
    return copied


linked = link((Kind.CU_JIT_INPUT_PTX, PTX), (Kind.CU_JIT_INPUT_PTX, OTHER + b"\0"), (Kind.CU_JIT_INPUT_CUBIN, TEXT))
module = ok(driver.cuModuleLoadData(linked))
assert ok(driver.cuModuleGetFunctionCount(module)) == 4
for name in (b"first", b"second"):
    function = ok(driver.cuModuleGetFunction(module, name))
    layouts = [tuple(ok(driver.cuFuncGetParamInfo(function, index))) for index in range(3)]
    assert layouts == [(0, 8), (8, 1), (16, 8)], layouts
    assert ok(driver.cuFuncGetAttribute(driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PTX_VERSION, function)) == 70
timed = ok(driver.cuModuleGetFunction(module, b"timed"))
assert ok(driver.cuFuncGetAttribute(driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, timed)) == 77
assert [ok(driver.cuModuleGetGlobal(module, name))[1] for name in (b"table", b"lookup", b"start")] == [12, 7, 8]
start = np.zeros(8, np.uint8)
ok(driver.cuMemcpyDtoH(start, ok(driver.cuModuleGetGlobal(module, b"start"))[0], 8))
assert list(start) == [1, 2, 3, 4, 5, 6, 7, 8]

# The linked image computes, and linking it again gives the same image.
pointer, filled = ok(driver.cuMemAlloc(64)), np.zeros(16, np.float32)
values = ((int(pointer), 2.5, 16), (ctypes.c_uint64, ctypes.c_float, ctypes.c_uint64))
ok(driver.cuLaunchKernel(ok(driver.cuModuleGetFunction(module, b"fill")), 1, 1, 1, 32, 1, 1, 0, 0, values, 0))
ok(driver.cuMemcpyDtoH(filled, pointer, 64))
assert (filled == 2.5).all()
assert link((Kind.CU_JIT_INPUT_CUBIN, linked)) == linked

# Errors are written to the log, as far as the buffer allows.
log, log_bytes = ctypes.create_string_buffer(4096), 4096
numbers = (ctypes.c_int * 2)(int(Option.CU_JIT_ERROR_LOG_BUFFER), int(Option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES))
answers = (ctypes.c_void_p * 2)(ctypes.addressof(log), log_bytes)
raw = ctypes.c_void_p()
assert library.cuLinkCreate_v2(2, numbers, answers, ctypes.byref(raw)) == 0
state = driver.CUlinkState(raw.value)
assert add(state, Kind.CU_JIT_INPUT_PTX, PTX, b"one.ptx") == "CUDA_SUCCESS"
assert add(state, Kind.CU_JIT_INPUT_PTX, PTX, b"two.ptx") == "CUDA_ERROR_INVALID_IMAGE"
log_text = log.value.decode()
assert "Multiple definition of 'first' in 'two.ptx'" in log_text
assert answers[1] == len(log_text)
assert add(state, Kind.CU_JIT_INPUT_PTX, b"nonsense") == "CUDA_ERROR_INVALID_PTX"
assert add(state, Kind.CU_JIT_INPUT_CUBIN, b"\x7fELF nonsense") == "CUDA_ERROR_INVALID_IMAGE"
assert add(state, Kind.CU_JIT_INPUT_FATBINARY, PTX) == "CUDA_ERROR_INVALID_IMAGE"
assert add(state, Kind.CU_JIT_INPUT_OBJECT, b"neither this nor that") == "CUDA_ERROR_INVALID_IMAGE"
assert add(state, Kind.CU_JIT_INPUT_NVVM, PTX) == "CUDA_ERROR_NOT_SUPPORTED"
with tempfile.TemporaryDirectory() as directory:
    path = Path(directory) / "other.ptx"
    path.write_bytes(OTHER)
    ok(driver.cuLinkAddFile(state, Kind.CU_JIT_INPUT_PTX, str(path).encode(), 0, [], []))
    missing = driver.cuLinkAddFile(state, Kind.CU_JIT_INPUT_PTX, str(path).encode() + b".not", 0, [], [])
    assert code(missing) == "CUDA_ERROR_FILE_NOT_FOUND"
image, size = ok(driver.cuLinkComplete(state))
kernels = [line for line in ctypes.string_at(image, size).splitlines() if line.startswith(b"kernel ")]
own = [line for line in kernels if b"__cotenant_part_" not in line]  # the hook adds variants for an offline tenant
assert own == [b"kernel first", b"kernel second"], kernels  # rejected inputs left nothing behind
ok(driver.cuLinkDestroy(state))
print("linked")
