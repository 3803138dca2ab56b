"""A graph with events that another process waits for and records; memory is visible after the event."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import Any

import numpy as np
from cuda.bindings import driver
from cuda_helpers import Gpu, ok

OPAQUE_BYTES = 64
NONBLOCKING, EXTERNAL = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING), 1
SHARED = int(driver.CUevent_flags.CU_EVENT_INTERPROCESS | driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
ROUNDS = 3
gpu = Gpu()
stream, second = (ok(driver.cuStreamCreate(NONBLOCKING)) for _ in range(2))


def text(handle: Any) -> str:
    return ctypes.string_at(int(handle.getPtr()), OPAQUE_BYTES).hex()


def handle(kind: type, hex_text: str) -> Any:
    structure = kind()
    ctypes.memmove(int(structure.getPtr()), bytes.fromhex(hex_text), OPAQUE_BYTES)
    return structure


def read(address: int) -> list[int]:
    data = np.zeros(4, np.uint32)
    ok(driver.cuMemcpyDtoHAsync(data, address, data.nbytes, second))
    ok(driver.cuStreamSynchronize(second))
    return [int(word) for word in data]


def other_process() -> None:
    memory = int(ok(driver.cuIpcOpenMemHandle(handle(driver.CUipcMemHandle, input()), 1)))
    written, reply = (ok(driver.cuIpcOpenEventHandle(handle(driver.CUipcEventHandle, input()))) for _ in range(2))
    for _ in range(ROUNDS):
        input()
        gpu.spin(10_000_000, stream)
        ok(driver.cuMemsetD32Async(memory + 4, 9, 1, stream))
        ok(driver.cuEventRecord(reply, stream))
        print("recorded", flush=True)
        input()
        ok(driver.cuEventSynchronize(written))
        print(read(memory)[0], flush=True)
    ok(driver.cuStreamSynchronize(stream))
    ok(driver.cuIpcCloseMemHandle(memory))


def capture(memory: int, written: Any, reply: Any) -> Any:
    """Capture a branch that writes for the other process, followed by a wait for the data of that process."""
    fork = ok(driver.cuEventCreate(0))
    ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    ok(driver.cuEventRecord(fork, stream))
    ok(driver.cuStreamWaitEvent(second, fork, 0))
    gpu.spin(5_000_000, second)
    ok(driver.cuMemsetD32Async(memory, 5, 1, second))
    ok(driver.cuEventRecordWithFlags(written, second, EXTERNAL))
    ok(driver.cuMemsetD32Async(memory + 8, 6, 1, stream))
    ok(driver.cuEventRecord(fork, second))
    ok(driver.cuStreamWaitEvent(stream, fork, 0))
    ok(driver.cuStreamWaitEvent(stream, reply, EXTERNAL))
    ok(driver.cuMemcpyDtoDAsync(memory + 12, memory + 4, 4, stream))
    return ok(driver.cuGraphInstantiate(ok(driver.cuStreamEndCapture(stream)), 0))


def main() -> None:
    memory = ok(driver.cuMemAlloc(4096))
    written, reply = (ok(driver.cuEventCreate(SHARED)) for _ in range(2))
    other = subprocess.Popen(
        [sys.executable, __file__, "other"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdin is not None
    assert other.stdout is not None
    lines = [text(ok(driver.cuIpcGetMemHandle(memory)))]
    lines += [text(ok(driver.cuIpcGetEventHandle(event))) for event in (written, reply)]
    print(*lines, sep="\n", file=other.stdin, flush=True)
    run = capture(int(memory), written, reply)
    for _ in range(ROUNDS):
        ok(driver.cuMemsetD32Async(memory, 0, 4, stream))
        ok(driver.cuStreamSynchronize(stream))
        print("record", file=other.stdin, flush=True)
        assert other.stdout.readline().strip() == "recorded"
        ok(driver.cuGraphLaunch(run, stream))
        print("wait", file=other.stdin, flush=True)
        assert other.stdout.readline().strip() == "5"
        ok(driver.cuStreamSynchronize(stream))
        assert read(int(memory)) == [5, 9, 6, 9]
    assert other.wait(timeout=60) == 0
    ok(driver.cuGraphExecDestroy(run))
    ok(driver.cuMemFree(memory))
    print("seen")


other_process() if sys.argv[1:] else main()
