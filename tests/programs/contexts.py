"""Contexts that other threads end: a new one in the same place is not the one they had, and events keep to theirs."""

from __future__ import annotations

import threading
from collections.abc import Callable

from cuda.bindings import driver
from face import code, ok

ok(driver.cuInit(0))
device = ok(driver.cuDeviceGet(0))


def elsewhere(context: driver.CUcontext, change: Callable[[], None]) -> list[str]:
    """What a thread with this current context gets once `change` has happened in the main one."""
    ready, changed, answers = threading.Event(), threading.Event(), []

    def body() -> None:
        ok(driver.cuCtxSetCurrent(context))
        ok(driver.cuMemAlloc(16))
        ready.set()
        changed.wait()
        answers.append(code(driver.cuMemAlloc(16)))
        answers.append(code(driver.cuStreamCreate(0)))
        answers.append(code(driver.cuCtxSynchronize()))

    thread = threading.Thread(target=body)
    thread.start()
    ready.wait()
    change()
    changed.set()
    thread.join()
    return answers


def replace() -> None:
    ok(driver.cuCtxDestroy(first))
    ok(driver.cuCtxCreate(None, 0, device))


first = ok(driver.cuCtxCreate(None, 0, device))
assert elsewhere(first, replace) == ["CUDA_ERROR_CONTEXT_IS_DESTROYED"] * 3
ok(driver.cuMemAlloc(16))  # the new one is current here

# An event is recorded in streams of its own context; streams of any may wait for it.
stream, event = ok(driver.cuStreamCreate(0)), ok(driver.cuEventCreate(0))
ok(driver.cuEventRecord(event, stream))
third = ok(driver.cuCtxCreate(None, 0, device))
foreign = ok(driver.cuEventCreate(0))
for pair in ((foreign, stream), (event, 0), (event, ok(driver.cuStreamCreate(0)))):
    assert code(driver.cuEventRecord(*pair)) == "CUDA_ERROR_INVALID_HANDLE"
ok(driver.cuEventRecord(foreign, 0))
ok(driver.cuStreamWaitEvent(stream, foreign, 0))
ok(driver.cuStreamWaitEvent(0, event, 0))
ok(driver.cuStreamSynchronize(stream))
ok(driver.cuCtxDestroy(third))


def reset() -> None:
    ok(driver.cuDevicePrimaryCtxReset(device))


def renew() -> None:
    reset()
    assert int(ok(driver.cuDevicePrimaryCtxRetain(device))) == int(primary)


# A primary context is the device's: reset it is gone, retained again it is back.
primary = ok(driver.cuDevicePrimaryCtxRetain(device))
assert elsewhere(primary, renew) == ["CUDA_SUCCESS"] * 3
assert elsewhere(primary, reset) == ["CUDA_ERROR_CONTEXT_IS_DESTROYED"] * 3
print("told apart")
