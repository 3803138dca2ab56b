"""Launch, copy, allocate and wait on several threads until stopped; then print what each thread did."""

from __future__ import annotations

import ctypes
import sys
import threading

import numpy as np
from cuda.bindings import driver
from cuda_helpers import Gpu, ok

SIZE = 1 << 16
called: list[int] = []
note = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda number: called.append(number or 0))
address = ctypes.cast(note, ctypes.c_void_p).value


def work(gpu: Gpu, number: int, stop: threading.Event, rounds: list[int]) -> None:
    ok(driver.cuCtxSetCurrent(gpu.context))
    stream = ok(driver.cuStreamCreate(1))
    sent, received = np.full(SIZE, number, np.uint8), np.zeros(SIZE, np.uint8)
    while not stop.is_set():
        pointer = ok(driver.cuMemAllocAsync(SIZE, stream))
        ok(driver.cuMemcpyHtoDAsync(pointer, sent, SIZE, stream))
        gpu.spin(20_000, stream, blocks=1)
        ok(driver.cuLaunchHostFunc(stream, address, number))
        ok(driver.cuMemcpyDtoHAsync(received, pointer, SIZE, stream))
        ok(driver.cuMemFreeAsync(pointer, stream))
        ok(driver.cuStreamSynchronize(stream))
        assert (received == number).all()
        received[:] = 0
        rounds[number] += 1


def main() -> None:
    gpu = Gpu()
    stop = threading.Event()
    rounds = [0, 0, 0]
    threads = [threading.Thread(target=work, args=(gpu, number, stop, rounds)) for number in range(3)]
    for thread in threads:
        thread.start()
    print("begun", flush=True)
    for line in sys.stdin:
        if line == "stop\n":
            break
        print(*rounds, flush=True)
    stop.set()
    for thread in threads:
        thread.join()
    assert [called.count(number) for number in range(3)] == rounds
    print(*rounds)


if __name__ == "__main__":
    main()
