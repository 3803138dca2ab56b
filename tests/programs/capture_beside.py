"""One thread captures globally, which forbids event queries to all threads; another one only launches."""

from __future__ import annotations

import sys
import threading

from cuda.bindings import driver
from cuda_helpers import Gpu, ok

CAPTURES = 600

gpu = Gpu()
spin = gpu.function("spin")
mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
captured, other = (ok(driver.cuStreamCreate(int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))) for _ in range(2))
is_over = threading.Event()
sys.setswitchinterval(1e-5)


def launch() -> None:
    ok(driver.cuCtxSetCurrent(gpu.context))
    while not is_over.is_set():
        gpu.spin(2_000, other)


launcher = threading.Thread(target=launch)
launcher.start()
complete = 0
for _ in range(CAPTURES):
    ok(driver.cuStreamBeginCapture(captured, mode))
    gpu.spin(1_000, captured)
    gpu.spin(1_000, captured)
    complete += driver.cuStreamEndCapture(captured)[0] == driver.CUresult.CUDA_SUCCESS
is_over.set()
launcher.join()
ok(driver.cuCtxSynchronize())
print(f"{complete} of {CAPTURES} captures are whole")
