"""Execute one driver call per input line, and print the name and values of each answer."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

from cuda.bindings import driver
from cuda_helpers import IMAGE, code

handles: dict[str, Any] = {}


def context(sms: str = "", device: int = 0) -> tuple[Any, ...]:
    params = None
    if sms:
        affinity = driver.CUexecAffinityParam()
        affinity.type = driver.CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT
        affinity.param.smCount.val = int(sms)
        params = driver.CUctxCreateParams()
        params.execAffinityParams = [affinity]
        params.numExecAffinityParams = 1
    answer = driver.cuCtxCreate(params, 0, device)
    if answer[0] == driver.CUresult.CUDA_SUCCESS:
        handles["context"] = answer[1]
        handles["module"] = driver.cuModuleLoadData(IMAGE)[1]
    return answer[:1]


def launch(name: bytes, values: tuple[Any, ...], types: tuple[Any, ...], blocks: int) -> tuple[Any, ...]:
    function = driver.cuModuleGetFunction(handles["module"], name)[1]
    return driver.cuLaunchKernel(function, blocks, 1, 1, 256, 1, 1, 0, 0, (values, types), 0)


def spin(nanoseconds: str, blocks: str = "80") -> tuple[Any, ...]:
    return launch(b"spin", (int(nanoseconds),), (ctypes.c_uint64,), int(blocks))


def crash() -> tuple[Any, ...]:
    """Launch a kernel that writes to an invalid address."""
    types = (ctypes.c_void_p, ctypes.c_float, ctypes.c_int)
    launch(b"fill", (0x1000, 1.0, 256), types, 1)
    return driver.cuCtxSynchronize()


def alloc(size: str) -> tuple[Any, ...]:
    answer = driver.cuMemAlloc(int(size))
    if answer[0] == driver.CUresult.CUDA_SUCCESS:
        handles.setdefault("pointers", []).append(answer[1])
    return answer[:1]


def affinity() -> tuple[Any, ...]:
    answer = driver.cuCtxGetExecAffinity(driver.CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT)
    return answer[0], answer[1].param.smCount.val


def setenv(name: str, value: str) -> tuple[Any, ...]:
    os.environ[name] = value
    return (driver.CUresult.CUDA_SUCCESS,)


CALLS = {
    "init": lambda: driver.cuInit(0),
    "context": context,
    "on": lambda device: context(device=int(device)),
    "destroy": lambda: driver.cuCtxDestroy(handles.pop("context")),
    "spin": spin,
    "crash": crash,
    "sync": driver.cuCtxSynchronize,
    "query": lambda: driver.cuStreamQuery(0),
    "alloc": alloc,
    "free": lambda: driver.cuMemFree(handles["pointers"].pop()),
    "memory": driver.cuMemGetInfo,
    "attribute": lambda number: driver.cuDeviceGetAttribute(driver.CUdevice_attribute(int(number)), 0),
    "count": driver.cuDeviceGetCount,
    "affinity": affinity,
    "setenv": setenv,
}

print(os.getpid(), flush=True)
for line in sys.stdin:
    name, *arguments = line.split()
    answer = CALLS[name](*arguments)
    values = " ".join(str(int(value)) for value in answer[1:])
    print(f"{code(answer).removeprefix('CUDA_').removeprefix('ERROR_')} {values}".strip(), flush=True)
