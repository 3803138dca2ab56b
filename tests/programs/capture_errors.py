"""Calls that a capture forbids: each gets the driver's code, and invalidates the capture where it should."""

from __future__ import annotations

import threading
from typing import Any

from cuda.bindings import driver
from cuda_helpers import Gpu, code, ok

gpu = Gpu()
NONBLOCKING = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
GLOBAL, LOCAL, RELAXED = (
    driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL,
    driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED,
)
VOID = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_INVALIDATED
first, second = ok(driver.cuStreamCreate(NONBLOCKING)), ok(driver.cuStreamCreate(NONBLOCKING))
blocking = ok(driver.cuStreamCreate(0))
event, other = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
pointer = ok(driver.cuMemAlloc(4096))
UNSUPPORTED, INVALIDATED = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"


def assert_voids(stream: Any, expected: str, call: Any, mode: Any = GLOBAL) -> None:
    """Assert that the call returns this code during a capture and invalidates the capture."""
    ok(driver.cuStreamBeginCapture(stream, mode))
    ok(driver.cuMemsetD8Async(pointer, 1, 16, stream))
    result = code(call())
    assert result == expected, result
    assert ok(driver.cuStreamIsCapturing(stream)) == VOID
    assert code(driver.cuMemsetD8Async(pointer, 1, 16, stream)) == INVALIDATED
    assert code(driver.cuStreamEndCapture(stream)) == INVALIDATED
    ok(driver.cuStreamSynchronize(stream))  # and the stream is a stream again


def in_other_thread(call: Any) -> str:
    """Return the result of the call in another thread."""
    results: list[str] = []

    def run() -> None:
        ok(driver.cuCtxSetCurrent(gpu.context))
        results.append(code(call()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


# Waiting for captured work, or for the whole context.
assert_voids(first, UNSUPPORTED, lambda: driver.cuStreamSynchronize(first))
assert_voids(first, UNSUPPORTED, lambda: driver.cuStreamQuery(first), RELAXED)
assert_voids(first, UNSUPPORTED, driver.cuCtxSynchronize, RELAXED)

# The legacy stream waits for blocking ones; beside others it may be used.
assert_voids(blocking, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", lambda: driver.cuMemsetD8Async(pointer, 1, 16, 0), RELAXED)
ok(driver.cuStreamBeginCapture(blocking, RELAXED))
assert code(driver.cuStreamIsCapturing(0)) == "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"
ok(driver.cuStreamEndCapture(blocking))
ok(driver.cuStreamBeginCapture(first, GLOBAL))
ok(driver.cuMemsetD8Async(pointer, 1, 16, 0))
ok(driver.cuStreamEndCapture(first))

# Calls that might wait: forbidden by the mode.
assert_voids(first, UNSUPPORTED, lambda: driver.cuMemAlloc(64))
assert_voids(first, UNSUPPORTED, lambda: driver.cuEventQuery(other))
assert_voids(first, UNSUPPORTED, lambda: driver.cuMemFree(pointer), LOCAL)
ok(driver.cuStreamBeginCapture(first, RELAXED))
ok(driver.cuMemFree(ok(driver.cuMemAlloc(64))))
ok(driver.cuStreamEndCapture(first))
ok(driver.cuStreamBeginCapture(first, LOCAL))
assert in_other_thread(lambda: driver.cuMemAlloc(64)) == "CUDA_SUCCESS"
ok(driver.cuStreamEndCapture(first))
ok(driver.cuStreamBeginCapture(first, GLOBAL))
assert in_other_thread(lambda: driver.cuMemAlloc(64)) == UNSUPPORTED
assert code(driver.cuStreamEndCapture(first)) == INVALIDATED
assert ok(driver.cuThreadExchangeStreamCaptureMode(RELAXED)) == GLOBAL
ok(driver.cuStreamBeginCapture(first, GLOBAL))
ok(driver.cuMemFree(ok(driver.cuMemAlloc(64))))
ok(driver.cuStreamEndCapture(first))
assert ok(driver.cuThreadExchangeStreamCaptureMode(GLOBAL)) == RELAXED

# Events: none from outside, none of another capture, and none that was captured can be asked about.
ok(driver.cuEventRecord(other, second))
assert_voids(first, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", lambda: driver.cuStreamWaitEvent(first, other, 0))
ok(driver.cuStreamBeginCapture(first, RELAXED))
ok(driver.cuEventRecord(event, first))
assert code(driver.cuEventQuery(event)) == "CUDA_ERROR_CAPTURED_EVENT"
assert code(driver.cuStreamEndCapture(first)) == INVALIDATED
assert code(driver.cuEventSynchronize(event)) == "CUDA_ERROR_CAPTURED_EVENT"
assert code(driver.cuStreamWaitEvent(second, event, 0)) == "CUDA_ERROR_CAPTURED_EVENT"
ok(driver.cuEventRecord(event, first))
ok(driver.cuEventSynchronize(event))
ok(driver.cuStreamBeginCapture(first, GLOBAL))
ok(driver.cuStreamBeginCapture(second, GLOBAL))
ok(driver.cuEventRecord(event, first))
assert code(driver.cuStreamWaitEvent(second, event, 0)) == "CUDA_ERROR_STREAM_CAPTURE_MERGE"
for stream in (first, second):
    assert code(driver.cuStreamEndCapture(stream)) == INVALIDATED

# An end in the wrong place: not begun, another stream, work not joined, another thread.
assert code(driver.cuStreamEndCapture(first)) == "CUDA_ERROR_ILLEGAL_STATE"
assert code(driver.cuStreamBeginCapture(0, GLOBAL)) == UNSUPPORTED


def fork() -> None:
    ok(driver.cuStreamBeginCapture(first, GLOBAL))
    assert code(driver.cuStreamBeginCapture(first, GLOBAL)) == "CUDA_ERROR_ILLEGAL_STATE"
    ok(driver.cuEventRecord(event, first))
    ok(driver.cuStreamWaitEvent(second, event, 0))
    ok(driver.cuMemsetD8Async(pointer, 1, 16, second))


fork()
assert code(driver.cuStreamEndCapture(second)) == "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"
assert code(driver.cuStreamEndCapture(first)) == INVALIDATED
fork()
assert code(driver.cuStreamEndCapture(first)) == "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"
ok(driver.cuStreamSynchronize(second))
ok(driver.cuStreamBeginCapture(first, GLOBAL))
assert in_other_thread(lambda: driver.cuStreamEndCapture(first)) == "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"
ok(driver.cuStreamEndCapture(first))
ok(driver.cuStreamBeginCapture(first, RELAXED))
assert in_other_thread(lambda: driver.cuStreamEndCapture(first)) == "CUDA_SUCCESS"

# A graph cannot be launched into a captured stream; a stream that ends leaves its work to be joined.
empty = ok(driver.cuGraphInstantiate(ok(driver.cuGraphCreate(0)), 0))
assert_voids(first, UNSUPPORTED, lambda: driver.cuGraphLaunch(empty, first))
fork()
ok(driver.cuStreamDestroy(second))
assert code(driver.cuStreamEndCapture(first)) == "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"
ok(driver.cuStreamBeginCapture(first, GLOBAL))
ok(driver.cuStreamDestroy(first))  # and with the first of them the capture ends
ok(driver.cuMemFree(pointer))
print("void")
