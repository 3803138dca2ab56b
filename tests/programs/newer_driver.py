"""Ask a driver for the newest version of a call and for an unknown one, and capture a graph."""

from __future__ import annotations

import ctypes

cuda = ctypes.CDLL("libcuda.so.1")


def ask(name: bytes, version: int) -> tuple[int, bool, int]:
    address, status = ctypes.c_void_p(), ctypes.c_int(-1)
    code = cuda.cuGetProcAddress_v2(name, ctypes.byref(address), version, ctypes.c_uint64(0), ctypes.byref(status))
    return code, bool(address.value), status.value


def launch() -> int:
    return int(cuda.cuLaunchKernel(ctypes.c_void_p(16), 1, 1, 1, 32, 1, 1, 0, None, None, None))


print("known", *ask(b"cuLaunchKernel", 12000))
print("newer", *ask(b"cuLaunchKernel", 99000))
print("never heard of", *ask(b"cuTomorrow", 99000), cuda.cuTomorrow())
print("none", *ask(b"cuNone", 99000))
graph, exec_ = ctypes.c_void_p(), ctypes.c_void_p()
print("launch", launch())
print("query", cuda.cuEventQuery(ctypes.c_void_p(64)))
mode = ctypes.c_int(1)
print("mode", cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)), mode.value)
print("begin", cuda.cuStreamBeginCapture_v2(ctypes.c_void_p(32), 0))
print("captured", launch(), launch())
print("end", cuda.cuStreamEndCapture(ctypes.c_void_p(32), ctypes.byref(graph)))
print("end again", cuda.cuStreamEndCapture(ctypes.c_void_p(32), ctypes.byref(graph)))
print("instantiate", cuda.cuGraphInstantiateWithFlags(ctypes.byref(exec_), graph, ctypes.c_ulonglong(0)))
print("graph", [cuda.cuGraphLaunch(exec_, None) for _ in range(5)])
print("destroy", cuda.cuGraphExecDestroy(exec_))
print("bad", cuda.cuLaunchKernel(None, 1, 1, 1, 32, 1, 1, 0, None, None, None))
print("table", cuda.cuGetExportTable(ctypes.byref(ctypes.c_void_p()), None))
print("launch", launch())
print("query", cuda.cuEventQuery(ctypes.c_void_p(64)))
print("mode", cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)), mode.value)
