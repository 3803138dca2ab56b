"""Launch long kernels in every way that the hook may cut into parts, and print a digest of their results.

The argument is the number of rounds; a line of the standard input ends the program after the digest. A second argument
says in which form the program has its code: `text`, `fat` (a fat binary), `packed` (a compressed one), `file` (such a
file) or `linked` (by the driver, from a text, a fat binary and a file). Other first arguments:
`hold`: keep launching short kernels, with pauses, until the standard input ends. `idle`: launch some, then none.
`threads`: two threads launch into one stream. `graph`: launch a captured graph.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import select
import struct
import sys
import tempfile
import threading
import time
from typing import Any

import numpy as np
from cuda.bindings import driver
from cuda_helpers import IMAGE, ok
from ptx_kernels import HEAD, entry

BLOCKS, THREADS = (40, 25, 8), 32
COUNT = BLOCKS[0] * BLOCKS[1] * BLOCKS[2] * THREADS
BODY = "ld.global.u32 %r1, [%o]; mad.lo.u32 %r1, %r1, 3, %i; red.global.add.u32 [total], 1; st.global.u32 [%o], %r1;"
AREA = ".shared .align 4 .b8 area[40960]; mov.u32 %r9, area; st.shared.u32 [%r9], %n;"
OUTSIDE = ".visible .global .align 4 .u32 total = 0;\n.extern .shared .align 16 .b8 dynamic[];\n"
LARGE = "mov.u32 %r9, dynamic; add.u32 %r9, %r9, 65536; st.shared.u32 [%r9], %n;"
SAME = (
    "ld.global.u32 %r1, [%o]; ld.global.u32 %r2, [%out]; setp.eq.u32 %p1, %r1, %r2; @!%p1 red.global.add.u32 [%in], 1;"
)
NEXT = AREA + "ld.global.u32 %r1, [%o]; add.u32 %r1, %r1, 1; st.global.u32 [%o], %r1;"
THREADED = HEAD + entry(NEXT) + entry(SAME).replace(".entry k", ".entry same")
TEXT = HEAD + OUTSIDE + entry(AREA + BODY) + entry(LARGE + BODY).replace(".entry k", ".entry large")
U64 = ctypes.c_uint64


def hold(*, idles: bool) -> None:
    module = ok(driver.cuModuleLoadData(IMAGE))
    spin = ok(driver.cuModuleGetFunction(module, b"spin"))
    print("holding", flush=True)
    for number in itertools.count():
        if select.select([sys.stdin], [], [], None if idles and number == 200 else 0.001)[0]:
            break
        ok(driver.cuLaunchKernel(spin, 40, 1, 1, 256, 1, 1, 0, 0, ((100_000,), (U64,)), 0))
        ok(driver.cuCtxSynchronize())


def fat_binary(text: str, *, packed: bool = False) -> bytes:
    """Return a fat binary with the text for devices from 7.0 on, stored or as one run of LZ4 literals."""
    content = text.encode() + b"\0"
    rest = len(content) - 15
    payload = bytes([0xF0]) + b"\xff" * (rest // 255) + bytes([rest % 255]) + content if packed else content
    size = (len(payload) + 7) // 8 * 8
    flags = 0x2000 if packed else 0
    head = struct.pack(
        "<HHIQIIIIQQQQ", 1, 0x101, 64, size, len(payload) if packed else 0, 0, 0, 70, 0, flags, 0, len(content)
    )
    newer = struct.pack("<HHIQIIIIQQQQ", 1, 0x101, 64, 8, 0, 0, 0, 255, 0, 0, 0, 0) + b"unknown\0"
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 64 + size + 72) + head + payload.ljust(size, b"\0") + newer


def link(large: bytes) -> bytes:
    """Return the image that the driver links from one text for each kernel, and a third one with a variable."""
    state = ok(driver.cuLinkCreate(0, [], []))
    kind = driver.CUjitInputType
    variable = OUTSIDE.splitlines()[0]
    with tempfile.NamedTemporaryFile(suffix=".ptx") as file:
        file.write((HEAD + variable).encode())
        file.flush()
        ok(driver.cuLinkAddFile(state, kind.CU_JIT_INPUT_PTX, file.name.encode(), 0, [], []))
        first = (HEAD + ".extern .global .align 4 .u32 total;\n" + entry(AREA + BODY)).encode()
        ok(driver.cuLinkAddData(state, kind.CU_JIT_INPUT_PTX, first, len(first), b"first", 0, [], []))
        ok(driver.cuLinkAddData(state, kind.CU_JIT_INPUT_FATBINARY, large, len(large), b"second", 0, [], []))
        image, size = ok(driver.cuLinkComplete(state))
        copied = ctypes.string_at(image, size)
    ok(driver.cuLinkDestroy(state))
    return copied


def code_in(form: str) -> bytes:
    if form == "linked":
        dynamic = ".extern .global .align 4 .u32 total;\n.extern .shared .align 16 .b8 dynamic[];\n"
        return link(fat_binary(HEAD + dynamic + entry(LARGE + BODY).replace(".entry k", ".entry large"), packed=True))
    return TEXT.encode() if form == "text" else fat_binary(TEXT, packed=form != "fat")


class Program:
    """A module and a library of the text, and the memory that their kernels change."""

    def __init__(self, form: str) -> None:
        code = code_in(form)
        if form == "file":
            with tempfile.NamedTemporaryFile(suffix=".fatbin") as file:
                file.write(code)
                file.flush()
                self.module = ok(driver.cuModuleLoad(file.name.encode()))
                self.library = ok(driver.cuLibraryLoadFromFile(file.name.encode(), [], [], 0, [], [], 0))
        else:
            self.module = ok(driver.cuModuleLoadData(code))
            kept = driver.CUlibraryOption.CU_LIBRARY_BINARY_IS_PRESERVED
            options: Any = ([kept], [1], 1) if form == "fat" else ([], [], 0)
            self.library = ok(driver.cuLibraryLoadData(code, [], [], 0, *options))
        self.kernel = ok(driver.cuModuleGetFunction(self.module, b"k"))
        self.large = ok(driver.cuModuleGetFunction(self.module, b"large"))
        ok(driver.cuFuncSetAttribute(self.large, driver.CUfunction_attribute(8), 80000))
        self.of_library = ok(driver.cuLibraryGetKernel(self.library, b"k"))
        assert ok(driver.cuModuleGetFunctionCount(self.module)) == 2
        names = {ok(driver.cuFuncGetName(one)) for one in ok(driver.cuModuleEnumerateFunctions(2, self.module))}
        assert names == {b"k", b"large"}, names
        assert ok(driver.cuLibraryGetKernelCount(self.library)) == 2
        self.data = ok(driver.cuMemAlloc(COUNT * 4))
        self.streams = [0, ok(driver.cuStreamCreate(0)), ok(driver.cuStreamCreate(1)), driver.CUstream(2)]
        ok(driver.cuMemsetD32(self.data, 1, COUNT))

    def launch_into(self, stream: Any) -> None:
        values = ((int(self.data), int(self.data)), (U64, U64))
        ok(driver.cuLaunchKernel(self.kernel, *BLOCKS, THREADS, 1, 1, 0, stream, values, 0))

    def launch(self, number: int) -> None:
        """Launch in one of several ways, which all do the same."""
        stream, ways = self.streams[number // 5 % 4], number % 5
        values: Any = ((int(self.data), int(self.data)), (U64, U64))
        if ways == 0:
            self.launch_into(stream)
        elif ways == 1:
            ok(driver.cuLaunchKernel(self.large, *BLOCKS, THREADS, 1, 1, 70000, stream, values, 0))
        elif ways == 2:
            function = ok(driver.cuKernelGetFunction(self.of_library))
            ok(driver.cuLaunchKernel(function, *BLOCKS, THREADS, 1, 1, 0, stream, values, 0))
        elif ways == 3:
            config = driver.CUlaunchConfig()
            config.gridDimX, config.gridDimY, config.gridDimZ = BLOCKS
            config.blockDimX, config.blockDimY, config.blockDimZ = THREADS, 1, 1
            config.hStream = driver.CUstream(int(stream)) if isinstance(stream, int) else stream
            ok(driver.cuLaunchKernelEx(config, self.kernel, values, 0))
        else:
            buffer = (U64 * 2)(int(self.data), int(self.data))
            size = ctypes.c_size_t(16)
            extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
            ok(driver.cuLaunchKernel(self.kernel, *BLOCKS, THREADS, 1, 1, 0, stream, 0, ctypes.addressof(extra)))
        if stream:
            ok(driver.cuStreamSynchronize(stream))

    def digest(self) -> str:
        out = np.empty(COUNT, np.uint32)
        ok(driver.cuCtxSynchronize())
        ok(driver.cuMemcpyDtoH(out, self.data, out.nbytes))
        totals = []
        library, size = ok(driver.cuLibraryGetGlobal(self.library, b"total"))
        for pointer in (ok(driver.cuModuleGetGlobal(self.module, b"total"))[0], library):
            total = np.empty(1, np.uint32)
            ok(driver.cuMemcpyDtoH(total, pointer, size))
            totals.append(int(total[0]))
        return f"{hashlib.sha256(out.tobytes()).hexdigest()} {totals}"


def threads() -> None:
    """One thread increments all words, the other one checks that they are equal; each launch sees whole ones."""
    module = ok(driver.cuModuleLoadData(THREADED.encode()))
    following, same = (ok(driver.cuModuleGetFunction(module, name)) for name in (b"k", b"same"))
    data, different = ok(driver.cuMemAlloc(COUNT * 4)), ok(driver.cuMemAlloc(4))
    ok(driver.cuMemsetD32(data, 1, COUNT))
    ok(driver.cuMemsetD32(different, 0, 1))
    context, stream = ok(driver.cuCtxGetCurrent()), ok(driver.cuStreamCreate(1))
    values = ((int(different), int(data)), (U64, U64))

    def launch(function: Any, pause_s: float) -> None:
        ok(driver.cuCtxSetCurrent(context))
        for _ in range(8):
            ok(driver.cuLaunchKernel(function, *BLOCKS, THREADS, 1, 1, 0, stream, values, 0))
            time.sleep(pause_s)

    running = [threading.Thread(target=launch, args=one) for one in ((following, 0.0), (same, 0.001))]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    found = np.empty(1, np.uint32)
    ok(driver.cuCtxSynchronize())
    ok(driver.cuMemcpyDtoH(found, different, 4))
    print(f"{found[0]} different", flush=True)


def graph(program: Program) -> None:
    stream = program.streams[2]
    for number in (0, 0, 0, 0):  # their times are known afterwards
        program.launch(number)
    ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    program.launch_into(stream)
    captured = ok(driver.cuStreamEndCapture(stream))
    runner = ok(driver.cuGraphInstantiate(captured, 0))
    for _ in range(5):
        ok(driver.cuGraphLaunch(runner, stream))
        ok(driver.cuStreamSynchronize(stream))


def main() -> None:
    ok(driver.cuInit(0))
    ok(driver.cuCtxCreate(None, 0, ok(driver.cuDeviceGet(0))))
    if sys.argv[1] in ("hold", "idle"):
        hold(idles=sys.argv[1] == "idle")
        return
    if sys.argv[1] == "threads":
        threads()
        sys.stdin.readline()
        return
    program = Program(sys.argv[2] if len(sys.argv) > 2 else "text")
    if sys.argv[1] == "graph":
        graph(program)
        print(program.digest(), flush=True)
        sys.stdin.readline()
        return
    for number in range(int(sys.argv[1])):
        program.launch(number)
        if number % 3 == 0:
            ok(driver.cuCtxSynchronize())
            time.sleep(0.002)
    print(program.digest(), flush=True)
    sys.stdin.readline()


main()
