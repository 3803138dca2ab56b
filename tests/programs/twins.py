"""Per-thread default streams do not wait for each other; the legacy one waits for them (_ptsz symbols by ctypes)."""

from __future__ import annotations

import ctypes
import threading

cuda = ctypes.CDLL("libcuda.so.1")
P, U64 = ctypes.c_void_p, ctypes.c_uint64
IMAGE = b"softgpu-image 1\nkernel spin\n params 8\n duration_param 0\nkernel fill\n builtin fill\n"


def ok(result: int) -> None:
    assert result == 0, result


context, module, spin, fill = P(), P(), P(), P()
ok(cuda.cuInit(0))
ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
ok(cuda.cuCtxSetCurrent(context))
ok(cuda.cuModuleLoadData(ctypes.byref(module), IMAGE))
ok(cuda.cuModuleGetFunction(ctypes.byref(spin), module, b"spin"))
ok(cuda.cuModuleGetFunction(ctypes.byref(fill), module, b"fill"))
pointer = U64()
ok(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(4096)))


def launch(call: object, function: ctypes.c_void_p, *values: object) -> None:
    words = (P * len(values))(*(ctypes.cast(ctypes.byref(v), P) for v in values))  # type: ignore[arg-type]
    ok(call(function, 1, 1, 1, 32, 1, 1, 0, None, words, None))  # type: ignore[operator]


# This thread's stream is held up until a word is written; another thread's is free at once.
pinned, gate = P(), U64()
ok(cuda.cuMemHostAlloc(ctypes.byref(pinned), ctypes.c_size_t(4), 0))
word = ctypes.cast(pinned, ctypes.POINTER(ctypes.c_uint32))
word[0] = 0
ok(cuda.cuMemHostGetDevicePointer_v2(ctypes.byref(gate), pinned, 0))
ok(cuda.cuStreamWaitValue32_v2_ptsz(None, gate, ctypes.c_uint32(1), 0))
launch(cuda.cuLaunchKernel_ptsz, spin, U64(1_000_000))
assert cuda.cuStreamQuery_ptsz(None) == 600
results: list[int] = []


def in_other_thread() -> None:
    ok(cuda.cuCtxSetCurrent(context))
    launch(cuda.cuLaunchKernel_ptsz, fill, pointer, ctypes.c_float(2), U64(1024))
    ok(cuda.cuStreamSynchronize_ptsz(None))
    results.append(cuda.cuStreamQuery_ptsz(None))


thread = threading.Thread(target=in_other_thread)
thread.start()
thread.join()
assert results == [0]
assert cuda.cuStreamQuery_ptsz(None) == 600, "the other thread's work waited for this thread's"
# Work of the legacy stream runs after both.
launch(cuda.cuLaunchKernel, fill, pointer, ctypes.c_float(3), U64(1024))
assert cuda.cuStreamQuery(None) == 600
word[0] = 1
ok(cuda.cuStreamSynchronize(None))
assert cuda.cuStreamQuery_ptsz(None) == 0
out = (ctypes.c_float * 1024)()
ok(cuda.cuMemcpyDtoH_v2(out, pointer, ctypes.c_size_t(4096)))
assert set(out) == {3.0}
ok(cuda.cuDevicePrimaryCtxRelease_v2(0))
print("twins")
