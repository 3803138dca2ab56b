"""One thread captures, which forbids all others to ask after events; another one launches and asks nothing."""

from __future__ import annotations

import sys
import threading

from cuda.bindings import driver
from face import Gpu, ok

CAPTURES = 600

gpu = Gpu()
spin = gpu.function("spin")
mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
mine, other = (ok(driver.cuStreamCreate(int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))) for _ in range(2))
is_over = threading.Event()
sys.setswitchinterval(1e-5)


def launch() -> None:
    ok(driver.cuCtxSetCurrent(gpu.context))
    while not is_over.is_set():
        gpu.spin(2_000, other)


beside = threading.Thread(target=launch)
beside.start()
whole = 0
for _ in range(CAPTURES):
    ok(driver.cuStreamBeginCapture(mine, mode))
    gpu.spin(1_000, mine)
    gpu.spin(1_000, mine)
    whole += driver.cuStreamEndCapture(mine)[0] == driver.CUresult.CUDA_SUCCESS
is_over.set()
beside.join()
ok(driver.cuCtxSynchronize())
print(f"{whole} of {CAPTURES} captures are whole")
