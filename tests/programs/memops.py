"""Streams wait for words in memory and write them: nothing behind a wait runs before the word is written."""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any

import numpy as np
from cuda.bindings import driver
from cuda_helpers import Gpu, code, ok

gpu = Gpu()
NONBLOCKING = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
first, second, third = (ok(driver.cuStreamCreate(NONBLOCKING)) for _ in range(3))
Wait, Op = driver.CUstreamWaitValue_flags, driver.CUstreamBatchMemOpType
GEQ, EQ, AND, NOR = (
    int(flag)
    for flag in (
        Wait.CU_STREAM_WAIT_VALUE_GEQ,
        Wait.CU_STREAM_WAIT_VALUE_EQ,
        Wait.CU_STREAM_WAIT_VALUE_AND,
        Wait.CU_STREAM_WAIT_VALUE_NOR,
    )
)
BUSY, SUCCESS = "CUDA_ERROR_NOT_READY", "CUDA_SUCCESS"
pinned = ok(driver.cuMemHostAlloc(4096, 0))
host32 = np.ctypeslib.as_array(ctypes.cast(int(pinned), ctypes.POINTER(ctypes.c_uint32)), (1024,))
host64 = host32.view(np.uint64)
host32[:] = 0
mapped = int(ok(driver.cuMemHostGetDevicePointer(pinned, 0)))
words = int(ok(driver.cuMemAlloc(4096)))
ok(driver.cuMemsetD32(words, 0, 1024))
ok(driver.cuCtxSynchronize())


def read(address: int) -> int:
    data = np.zeros(1, np.uint32)
    ok(driver.cuMemcpyDtoHAsync(data, address, 4, third))
    ok(driver.cuStreamSynchronize(third))
    return int(data[0])


def mark(stream: Any, address: int, value: int) -> None:
    """Queue a memset that shows when work after a wait has run."""
    ok(driver.cuMemsetD32Async(address, value, 1, stream))


# The host writes into mapped memory: the stream stands until then, its neighbour does not.
ok(driver.cuStreamWaitValue32(first, mapped, 5, GEQ))
mark(first, words, 11)
mark(second, words + 4, 12)
ok(driver.cuStreamSynchronize(second))
assert code(driver.cuStreamQuery(first)) == BUSY
assert (read(words), read(words + 4)) == (0, 12)
host32[0] = 4  # not enough
assert code(driver.cuStreamQuery(first)) == BUSY
host32[0] = 7
ok(driver.cuStreamSynchronize(first))
assert read(words) == 11

# Another stream's write, behind a kernel; the write itself is seen by the host without asking the device.
ok(driver.cuStreamWaitValue32(first, words + 8, 3, EQ))
mark(first, words, 21)
with gpu.hold(second):
    gpu.spin(1_000_000, second)
    ok(driver.cuStreamWriteValue32(second, words + 8, 3, 0))
    ok(driver.cuStreamWriteValue64(second, mapped + 16, (1 << 40) + 1, 0))
    assert code(driver.cuStreamQuery(first)) == BUSY
    assert read(words) == 11
ok(driver.cuStreamSynchronize(first))
assert read(words) == 21
while host64[2] == 0:
    pass
assert host64[2] == (1 << 40) + 1

# A copy and a kernel write the word, each followed by long work in its stream; a synchronization of another stream must
# not let the wait see the word early.
for value, write in (
    (31, lambda: ok(driver.cuMemcpyHtoDAsync(words + 12, np.full(1, 31, np.uint32), 4, second))),
    (32, lambda: ok(driver.cuMemsetD32Async(words + 12, 32, 1, second))),
    (
        0x3F800000,
        lambda: gpu.launch(
            gpu.function("fill"),
            (words + 12, 1.0, 1),
            (ctypes.c_uint64, ctypes.c_float, ctypes.c_uint64),
            stream=second,
        ),
    ),
):
    gate = ok(driver.cuEventCreate(0))
    ok(driver.cuStreamWaitValue32(second, mapped + 32, value, EQ))  # holds the writer
    write()
    ok(driver.cuEventRecord(gate, second))
    gpu.spin(100_000_000, second)
    ok(driver.cuStreamWaitValue32(first, words + 12, value, EQ))
    mark(first, words, value)
    mark(third, words + 4, value)
    ok(driver.cuStreamSynchronize(third))
    assert read(words + 4) == value
    assert code(driver.cuStreamQuery(first)) == BUSY
    host32[8] = value
    ok(driver.cuStreamSynchronize(first))
    assert read(words) == value
    assert code(driver.cuEventQuery(gate)) == SUCCESS
    ok(driver.cuStreamSynchronize(second))

# A copy after a long kernel writes the word: synchronizing with later work elsewhere must not make it visible.
gpu.spin(200_000_000, second)
ok(driver.cuMemsetD32Async(words + 16, 1, 1, second))
ok(driver.cuStreamWaitValue32(first, words + 16, 1, EQ))
mark(first, words + 20, 1)
mark(third, words + 24, 1)
ok(driver.cuStreamSynchronize(third))
early = code(driver.cuStreamQuery(first))
assert early == BUSY or code(driver.cuStreamQuery(second)) == SUCCESS
ok(driver.cuStreamSynchronize(first))
assert read(words + 20) == 1

# All conditions, in both widths; counters may wrap.
for flags, value, false_value, true_value in (
    (GEQ, 10, 9, 10),
    (GEQ, 2, 0xFFFFFFF0, 3),
    (EQ, 10, 11, 10),
    (AND, 6, 9, 4),
    (NOR, 0xFFFFFFF0, 0xF, 0x7),
):
    host32[40] = false_value
    ok(driver.cuStreamWaitValue32(first, mapped + 160, value, flags))
    assert code(driver.cuStreamQuery(first)) == BUSY, (flags, value)
    host32[40] = true_value
    ok(driver.cuStreamSynchronize(first))
for flags, value, false_value, true_value in ((GEQ, 1 << 40, 5, 1 << 41), (NOR, (1 << 64) - 2, 1, 0)):
    host64[30] = false_value
    ok(driver.cuStreamWaitValue64(first, mapped + 240, value, flags))
    assert code(driver.cuStreamQuery(first)) == BUSY, (flags, value)
    host64[30] = true_value
    ok(driver.cuStreamSynchronize(first))

# Two streams alternately increment a counter, in order; a batch is in the order of its array, or not at all.
host32[:] = 0
rounds = 20


def params(operation: Any, address: int, value: int, flags: int = 0) -> Any:
    operation_params = driver.CUstreamBatchMemOpParams()
    operation_params.operation = operation
    side = operation_params.waitValue if "WAIT" in operation.name else operation_params.writeValue
    side.operation, side.address, side.value, side.flags = operation, address, value, flags
    return operation_params


for step in range(rounds):
    turn = [
        params(Op.CU_STREAM_MEM_OP_WAIT_VALUE_32, mapped, 2 * step, EQ),
        params(Op.CU_STREAM_MEM_OP_WRITE_VALUE_32, mapped, 2 * step + 1),
    ]
    ok(driver.cuStreamBatchMemOp(first, 2, turn, 0))
    ok(driver.cuStreamWaitValue32(second, mapped, 2 * step + 1, EQ))
    ok(driver.cuStreamWriteValue32(second, mapped, 2 * step + 2, 0))
ok(driver.cuCtxSynchronize())
assert host32[0] == 2 * rounds
broken = [
    params(Op.CU_STREAM_MEM_OP_WRITE_VALUE_32, mapped, 99),
    params(Op.CU_STREAM_MEM_OP_WRITE_VALUE_32, mapped + 2, 99),
]
assert code(driver.cuStreamBatchMemOp(first, 2, broken, 0)) == "CUDA_ERROR_INVALID_VALUE"
ok(driver.cuCtxSynchronize())
assert host32[0] == 2 * rounds

# Host functions and waits take turns in one stream, and the other thread's write ends the last of them.
order: list[str] = []
begun = threading.Event()
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def begin(_: Any) -> None:
    order.append("before")
    begun.set()


before, after = HOST_FUNCTION(begin), HOST_FUNCTION(lambda _: order.append("after"))
library = ctypes.CDLL("libcuda.so.1")


def call(function: Any) -> None:
    assert library.cuLaunchHostFunc(ctypes.c_void_p(int(first)), function, None) == 0


def release() -> None:
    begun.wait()
    time.sleep(0.05)  # whatever did not wait would be over by then
    order.append("release")
    host32[1] = 1


call(before)
ok(driver.cuStreamWaitValue32(first, mapped + 4, 1, EQ))
call(after)
thread = threading.Thread(target=release)
thread.start()
ok(driver.cuStreamSynchronize(first))
thread.join()
assert order == ["before", "release", "after"], order

# Invalid arguments are rejected.
assert code(driver.cuStreamWaitValue32(first, mapped + 2, 1, EQ)) == "CUDA_ERROR_INVALID_VALUE"
assert code(driver.cuStreamWaitValue64(first, mapped + 4, 1, EQ)) == "CUDA_ERROR_INVALID_VALUE"
assert code(driver.cuStreamWaitValue32(first, 0x1000, 1, EQ)) == "CUDA_ERROR_INVALID_VALUE"
assert code(driver.cuStreamWaitValue32(first, mapped, 1, 0x10)) == "CUDA_ERROR_INVALID_VALUE"
assert code(driver.cuStreamWriteValue32(first, mapped, 1, 2)) == "CUDA_ERROR_INVALID_VALUE"
flush = int(Wait.CU_STREAM_WAIT_VALUE_FLUSH)
assert code(driver.cuStreamWaitValue32(first, mapped, 1, flush)) == "CUDA_ERROR_NOT_SUPPORTED"
assert code(driver.cuStreamWaitValue32(driver.CUstream(0x77), mapped, 1, EQ)) == "CUDA_ERROR_INVALID_HANDLE"
ok(driver.cuCtxDestroy(gpu.context))
print("values in order")
