"""Contexts destroyed by another thread: a new one at the same address is different, and events keep their context."""

from __future__ import annotations

import threading
from collections.abc import Callable

from cuda.bindings import driver
from cuda_helpers import code, ok

ok(driver.cuInit(0))
device = ok(driver.cuDeviceGet(0))


def in_other_thread(context: driver.CUcontext, change: Callable[[], None]) -> list[str]:
    """Return the results of a thread with this current context after `change` ran in the main thread."""
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
assert in_other_thread(first, replace) == ["CUDA_ERROR_CONTEXT_IS_DESTROYED"] * 3
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


# A primary context belongs to the device: a reset destroys it, and a retain creates it again.
primary = ok(driver.cuDevicePrimaryCtxRetain(device))
assert in_other_thread(primary, renew) == ["CUDA_SUCCESS"] * 3
assert in_other_thread(primary, reset) == ["CUDA_ERROR_CONTEXT_IS_DESTROYED"] * 3
print("told apart")
