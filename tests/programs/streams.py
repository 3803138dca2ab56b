"""Streams, events, host functions and default streams keep their order, and results are then visible."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
from cuda.bindings import driver
from cuda_helpers import Gpu, code, ok

gpu = Gpu()
NONBLOCKING = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
first, second = ok(driver.cuStreamCreate(NONBLOCKING)), ok(driver.cuStreamCreate(NONBLOCKING))
count = 4096
pinned = ok(driver.cuMemHostAlloc(count * 4, 0))
host = np.ctypeslib.as_array(ctypes.cast(int(pinned), ctypes.POINTER(ctypes.c_float)), (count,))
pointer = ok(driver.cuMemAlloc(count * 4))
fill, U64, F32 = gpu.function("fill"), ctypes.c_uint64, ctypes.c_float

# A later stream sees an earlier one's work through an event, however long that takes.
event = ok(driver.cuEventCreate(0))
with gpu.hold(first):
    gpu.launch(fill, (int(pointer), 5.0, count), (U64, F32, U64), stream=first)
    ok(driver.cuEventRecord(event, first))
    ok(driver.cuStreamWaitEvent(second, event, 0))
    ok(driver.cuMemcpyDtoHAsync(int(pinned), pointer, count * 4, second))
    assert code(driver.cuStreamQuery(second)) == "CUDA_ERROR_NOT_READY"
    assert code(driver.cuEventQuery(event)) == "CUDA_ERROR_NOT_READY"
ok(driver.cuStreamSynchronize(second))
assert (host == 5).all()
ok(driver.cuEventQuery(event))

# Time between events is the device's.
start, end = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
ok(driver.cuEventRecord(start, first))
with gpu.hold(first):
    gpu.spin(20_000_000, first)
    ok(driver.cuEventRecord(end, first))
    assert code(driver.cuEventElapsedTime(start, end)) == "CUDA_ERROR_NOT_READY"
ok(driver.cuEventSynchronize(end))
assert ok(driver.cuEventElapsedTime(start, end)) >= 20.0

# Exact to the nanosecond if the host has no influence: all work is queued before any of it begins.
with gpu.hold(first):
    gpu.spin(1_000_000, first)
    ok(driver.cuEventRecord(start, first))
    gpu.spin(2_500_000, first)
    ok(driver.cuEventRecord(end, first))
ok(driver.cuEventSynchronize(end))
assert ok(driver.cuEventElapsedTime(start, end)) == 2.5
assert ok(driver.cuEventElapsedTime(end, start)) == -2.5

# The result of one record is not used for the next one.
with gpu.hold(first):
    gpu.spin(20_000_000, first)
    ok(driver.cuEventRecord(end, first))
    assert code(driver.cuEventElapsedTime(start, end)) == "CUDA_ERROR_NOT_READY"
    assert code(driver.cuEventElapsedTime(end, start)) == "CUDA_ERROR_NOT_READY"
    assert code(driver.cuEventQuery(end)) == "CUDA_ERROR_NOT_READY"
ok(driver.cuStreamSynchronize(first))
ok(driver.cuEventQuery(end))
assert ok(driver.cuEventElapsedTime(start, end)) >= 22.5

# Host functions run in order, on another thread, and delay later work.
order: list[str] = []
callback_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def note(_: object) -> None:
    order.append(f"host {host[0]:.0f} {threading.get_ident() != main_thread}")


main_thread = threading.get_ident()
noted = callback_type(note)
gpu.launch(fill, (int(pointer), 6.0, count), (U64, F32, U64), stream=first)
ok(driver.cuMemcpyDtoHAsync(int(pinned), pointer, count * 4, first))
ok(driver.cuLaunchHostFunc(first, ctypes.cast(noted, ctypes.c_void_p).value, 0))
gpu.launch(fill, (int(pointer), 8.0, count), (U64, F32, U64), stream=first)
ok(driver.cuMemcpyDtoHAsync(int(pinned), pointer, count * 4, first))
ok(driver.cuStreamSynchronize(first))
assert order == ["host 6 True"], order
assert (host == 8).all()

# The legacy stream waits for blocking streams and they for it.
blocking = ok(driver.cuStreamCreate(0))
gpu.spin(1_000_000, blocking)
gpu.launch(fill, (int(pointer), 9.0, count), (U64, F32, U64), stream=blocking)
out = np.empty(count, np.float32)
ok(driver.cuMemcpyDtoH(out, pointer, out.nbytes))
assert (out == 9).all()

# Pageable memory may change as soon as an asynchronous copy has returned.
source = np.full(count, 3, np.float32)
gpu.spin(1_000_000, first)
ok(driver.cuMemcpyHtoDAsync(pointer, source, source.nbytes, first))
source[:] = 4
ok(driver.cuMemcpyDtoHAsync(int(pinned), pointer, count * 4, first))
ok(driver.cuStreamSynchronize(first))
assert (host == 3).all()

# A stream destroyed with queued work: the work is still done.
gpu.spin(1_000_000, first)
gpu.launch(fill, (int(pointer), 11.0, count), (U64, F32, U64), stream=first)
ok(driver.cuStreamDestroy(first))
assert code(driver.cuStreamQuery(first)) == "CUDA_ERROR_INVALID_HANDLE"
ok(driver.cuCtxSynchronize())
ok(driver.cuMemcpyDtoH(out, pointer, out.nbytes))
assert (out == 11).all()

# More launches than the ring or the device's queue hold: back-pressure, nothing lost.
for _ in range(5000):
    gpu.spin(1000, second, blocks=1)
gpu.launch(fill, (int(pointer), 12.0, count), (U64, F32, U64), stream=second)
ok(driver.cuStreamSynchronize(second))
ok(driver.cuMemcpyDtoH(out, pointer, out.nbytes))
assert (out == 12).all()
print("in order")
