"""Call the driver at random with valid and invalid handles and print every answer: anycalls.py SEED CALLS."""

from __future__ import annotations

import ctypes
import random
import sys
import zlib
from collections.abc import Callable
from typing import Any

IMAGE = b"""softgpu-image 1
kernel turn
  params 8
  duration_param 0
kernel spin
  params 8
  duration_param 0
"""
NOT_READY = 600
u64 = ctypes.c_uint64
p = ctypes.c_void_p


class RandomCaller:
    """Handles by kind, the calls that create and use them, and a trace of the results."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cuda = ctypes.CDLL("libcuda.so.1")
        kinds = ("ctx", "mem", "stream", "event", "mod", "fn", "lib", "kern")
        self.handles: dict[str, list[int]] = {kind: [] for kind in kinds}
        self.trace: list[str] = []

    def call(self, name: str, *arguments: Any, timing: bool = False) -> int:
        """Make one call; whether work was already complete depends on timing and is not traced."""
        result = int(getattr(self.cuda, name)(*arguments))
        text = "done or not" if timing and result in (0, NOT_READY) else str(result)
        self.trace.append(f"{name} -> {text}")
        return result

    def some(self, kind: str) -> int:
        handles = self.handles[kind]
        if handles and self.rng.random() < 0.9:
            return self.rng.choice(handles)
        return self.rng.choice([0, 0, 0xDEAD0000, 8])

    def make(self, kind: str, name: str, *arguments: Any) -> None:
        handle = u64(0)
        if self.call(name, ctypes.byref(handle), *arguments) == 0:
            self.handles[kind].append(handle.value)

    def end(self, kind: str, name: str, *more: Any) -> None:
        handle = self.some(kind)
        if self.call(name, p(handle), *more) == 0 and handle in self.handles[kind]:
            self.handles[kind].remove(handle)
            if kind == "ctx":  # its objects are gone, and their handles may be reused
                for other in ("stream", "event", "mod", "fn", "mem"):
                    self.handles[other].clear()
            if kind in ("mod", "lib"):
                self.handles["fn"].clear()
            if kind == "lib":
                self.handles["kern"].clear()

    def stream(self) -> Any:
        return p(self.rng.choice([0, 1, 2, self.some("stream"), self.some("stream")]))

    def launch(self) -> None:
        d = self.rng
        function = p(self.some(d.choice(["fn", "fn", "kern"])))
        grid = [d.choice([1, 2, 4, 0]), 1, 1]
        block = [d.choice([32, 64, 2048]), 1, 1]
        duration = u64(d.randrange(1000, 20_000))
        params = (p * 1)(ctypes.addressof(duration))
        name = d.choice(["cuLaunchKernel", "cuLaunchKernel_ptsz", "cuLaunchCooperativeKernel"])
        extra = () if "Cooperative" in name else (None,)
        self.call(name, function, *grid, *block, d.choice([0, 0, 1024, 1 << 30]), self.stream(), params, *extra)

    def copy(self) -> None:
        d = self.rng
        host_bytes = (ctypes.c_ubyte * 64)(*d.randbytes(64))
        size = d.choice([0, 1, 64])
        mem, other = u64(self.some("mem")), u64(self.some("mem"))
        choice = d.randrange(6)
        if choice == 0:
            self.call("cuMemcpyHtoD_v2", mem, host_bytes, size)
        elif choice == 1:
            if self.call("cuMemcpyDtoH_v2", host_bytes, mem, size) == 0:
                self.trace.append(f"  crc {zlib.crc32(bytes(host_bytes))}")
        elif choice == 2:
            self.call("cuMemcpyDtoDAsync_v2", mem, other, size, self.stream())
        elif choice == 3:
            self.call(d.choice(["cuMemsetD8Async", "cuMemsetD8Async_ptsz"]), mem, d.randrange(256), size, self.stream())
        elif choice == 4:
            self.call("cuMemsetD32_v2", mem, d.randrange(1 << 32), size // 4)
        else:
            self.call("cuMemcpyAsync", mem, other, size, self.stream())

    def event(self) -> None:
        d = self.rng
        event = p(self.some("event"))
        choice = d.randrange(6)
        if choice == 0:
            self.make("event", "cuEventCreate", d.choice([0, 2, 64]))
        elif choice == 1:
            self.call(d.choice(["cuEventRecord", "cuEventRecord_ptsz"]), event, self.stream())
        elif choice == 2:
            self.call("cuEventQuery", event, timing=True)
        elif choice == 3:
            self.call("cuEventSynchronize", event)
        elif choice == 4:
            self.call("cuEventElapsedTime", ctypes.byref(ctypes.c_float()), event, p(self.some("event")), timing=True)
        else:
            self.end("event", "cuEventDestroy_v2")

    def stream_call(self) -> None:
        d = self.rng
        choice = d.randrange(6)
        if choice == 0:
            self.make("stream", "cuStreamCreate", d.choice([0, 0, 99]))
        elif choice == 1:
            self.call("cuStreamQuery", self.stream(), timing=True)
        elif choice == 2:
            self.call(d.choice(["cuStreamSynchronize", "cuStreamSynchronize_ptsz"]), self.stream())
        elif choice == 3:
            self.call("cuStreamWaitEvent", self.stream(), p(self.some("event")), 0)
        elif choice == 4:
            self.end("stream", "cuStreamDestroy_v2")
        else:
            self.call("cuCtxSynchronize")

    def load(self) -> None:
        d = self.rng
        choice = d.randrange(7)
        if choice == 0:
            self.make("mod", "cuModuleLoadData", d.choice([IMAGE, IMAGE, b"nonsense"]))
        elif choice == 1:
            self.make("fn", "cuModuleGetFunction", p(self.some("mod")), d.choice([b"turn", b"spin", b"none"]))
        elif choice == 2:
            self.make("lib", "cuLibraryLoadData", IMAGE, None, None, 0, None, None, 0)
        elif choice == 3:
            self.make("kern", "cuLibraryGetKernel", p(self.some("lib")), d.choice([b"turn", b"spin", b"none"]))
        elif choice == 4:
            self.make("fn", "cuKernelGetFunction", p(self.some("kern")))
        elif choice == 5 and d.random() < 0.3:
            self.end("mod", "cuModuleUnload")
        elif choice == 6 and d.random() < 0.3:
            self.end("lib", "cuLibraryUnload")

    def memory(self) -> None:
        d = self.rng
        choice = d.randrange(6)
        if choice == 0:
            self.make("mem", "cuMemAlloc_v2", ctypes.c_size_t(d.choice([64, 4096, 0, 1 << 60])))
        elif choice == 1:
            self.end("mem", "cuMemFree_v2")
        elif choice == 2:
            self.make("mem", "cuMemAllocAsync", ctypes.c_size_t(64), self.stream())
        elif choice == 3:
            self.end("mem", "cuMemFreeAsync", self.stream())
        elif choice == 4:
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            if self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total)) == 0:
                self.trace.append(f"  total {total.value}")
        else:
            address, status = p(), ctypes.c_int(-1)
            name = d.choice([b"cuLaunchKernel", b"cuMemAlloc", b"cuStreamQuery", b"cuNothing", b"cuMemcpy"])
            version, flags = d.choice([0, 3000, 7000, 12000, 13000]), d.choice([0, 1, 2, 3])
            self.call("cuGetProcAddress_v2", name, ctypes.byref(address), version, u64(flags), ctypes.byref(status))
            self.trace.append(f"  {name.decode()} {version} {flags}: {bool(address.value)} {status.value}")

    def context(self) -> None:
        d = self.rng
        choice = d.randrange(4)
        if choice == 0 and len(self.handles["ctx"]) < 3:
            self.make("ctx", "cuCtxCreate_v2", 0, 0)
        elif choice == 1:
            self.call("cuCtxSetCurrent", p(self.some("ctx")))
        elif choice == 2 and d.random() < 0.2:
            self.end("ctx", "cuCtxDestroy_v2")
        else:
            self.call("cuCtxSynchronize")


def main(seed: int, calls: int) -> None:
    caller = RandomCaller(seed)
    caller.call("cuInit", 0)
    caller.make("ctx", "cuCtxCreate_v2", 0, 0)
    kinds: list[Callable[[], None]] = [
        caller.launch,
        caller.launch,
        caller.copy,
        caller.event,
        caller.stream_call,
        caller.load,
        caller.memory,
    ]
    for _ in range(calls):
        if caller.rng.random() < 0.02:
            caller.context()
        else:
            caller.rng.choice(kinds)()
    print("\n".join(caller.trace))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
