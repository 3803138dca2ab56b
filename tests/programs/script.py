"""Run a script of kernels and copies on several streams behind one gate, and print completion times."""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from typing import Any

from cuda.bindings import driver
from cuda_helpers import ok

# From the test: {"kernels": {name: image lines}, "priorities": [...], "ops": [[stream, name, blocks, threads], ...]};
# the op "copy" has bytes for blocks, and an op may wait for an earlier one: [..., earlier].
script = json.load(sys.stdin)
ok(driver.cuInit(0))
ok(driver.cuCtxCreate(None, 0, ok(driver.cuDeviceGet(0))))
image = "softgpu-image 1\n" + "".join(f"kernel {name}\n{lines}\n" for name, lines in script["kernels"].items())
module = ok(driver.cuModuleLoadData(image.encode()))
functions = {name: ok(driver.cuModuleGetFunction(module, name.encode())) for name in script["kernels"]}
streams = [ok(driver.cuStreamCreateWithPriority(1, priority)) for priority in script["priorities"]]
pinned = ok(driver.cuMemHostAlloc(1 << 20, 0))
pointer = ok(driver.cuMemAlloc(1 << 20))
gate, opened = ok(driver.cuEventCreate(0)), threading.Event()


def wait(_: Any) -> None:
    opened.wait()


waiting = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(wait)
ok(driver.cuLaunchHostFunc(streams[0], ctypes.cast(waiting, ctypes.c_void_p).value, 0))
ok(driver.cuEventRecord(gate, streams[0]))
for stream in streams[1:]:
    ok(driver.cuStreamWaitEvent(stream, gate, 0))
events: list[Any] = []
for index, name, size, threads, earlier in script["ops"]:
    if earlier is not None:
        ok(driver.cuStreamWaitEvent(streams[index], events[earlier], 0))
    if name == "copy":
        ok(driver.cuMemcpyHtoDAsync(pointer, int(pinned), size, streams[index]))
    else:
        ok(driver.cuLaunchKernel(functions[name], size, 1, 1, threads, 1, 1, 0, streams[index], 0, 0))
    events.append(ok(driver.cuEventCreate(0)))
    ok(driver.cuEventRecord(events[-1], streams[index]))
opened.set()
ok(driver.cuCtxSynchronize())
print(json.dumps([round(ok(driver.cuEventElapsedTime(gate, event)) * 1e6) for event in events]))
