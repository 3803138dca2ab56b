"""Kernels in PTX compute their results: memory, atomics, barriers, half precision, matrices, calls and printing."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np
from cuda.bindings import driver
from cuda_helpers import code, ok

HEAD = ".version 7.8\n.target sm_80\n.address_size 64\n"
REGISTERS = """
  .reg .b64 %d<12>; .reg .b32 %r<32>; .reg .f32 %f<8>; .reg .b16 %h<8>; .reg .pred %p<4>;
  ld.param.u64 %d1, [a]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; add.u64 %d3, %d1, %d2;
"""


def entry(body: str, name: str = "k") -> str:
    return f".visible .entry {name}(.param .u64 a)\n{{{REGISTERS}{body}\n  ret;\n}}\n"


def load(image: bytes) -> Any:
    return ok(driver.cuModuleLoadData(image))


def launch(function: Any, array: Any, threads: int, *, blocks: int = 1, shared: int = 0) -> Any:
    pointer = ok(driver.cuMemAlloc(array.nbytes))
    ok(driver.cuMemcpyHtoD(pointer, array, array.nbytes))
    values = ((int(pointer),), (ctypes.c_uint64,))
    ok(driver.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, shared, 0, values, 0))
    out = np.empty_like(array)
    ok(driver.cuMemcpyDtoH(out, pointer, array.nbytes))
    ok(driver.cuMemFree(pointer))
    return out


def run(text: str, array: Any, threads: int, **shape: int) -> Any:
    function = ok(driver.cuModuleGetFunction(load((HEAD + text).encode()), b"k"))
    return launch(function, array, threads, **shape)


def memory_spaces() -> None:
    text = """
.const .align 4 .u32 table[4] = {10, 20, 30, 40};
.global .align 8 .u64 pointer = table;
.extern .shared .align 16 .b8 dynamic[];
""" + entry("""
  .local .align 16 .b8 depot[16];
  .reg .b64 %SP, %SPL;
  mov.u64 %SPL, depot; cvta.local.u64 %SP, %SPL;
  and.b32 %r2, %r1, 3; mul.wide.u32 %d4, %r2, 4;
  mov.u64 %d5, table; add.u64 %d5, %d5, %d4; ld.const.u32 %r3, [%d5];
  st.u32 [%SP+4], %r3;
  ld.global.u64 %d6, [pointer]; ld.global.u32 %r4, [%d6+8];
  mov.u32 %r5, dynamic; mad.lo.u32 %r5, %r1, 4, %r5; ld.local.u32 %r6, [%SPL+4];
  add.u32 %r6, %r6, %r4; st.shared.u32 [%r5], %r6; bar.sync 0;
  mov.u64 %d7, dynamic; cvta.shared.u64 %d7, %d7; xor.b32 %r7, %r1, 1; mul.wide.u32 %d8, %r7, 4;
  add.u64 %d7, %d7, %d8; ld.u32 %r8, [%d7];
  st.global.u32 [%d3], %r8;""")
    out = run(text, np.zeros(64, np.uint32), 64, shared=256)
    assert out.tolist() == [10 * ((t ^ 1) % 4 + 1) + 30 for t in range(64)]


def vector_accesses() -> None:
    text = entry("""
  mul.wide.u32 %d4, %r1, 16; add.u64 %d4, %d1, %d4;
  ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%d4];
  st.global.v2.u32 [%d4], {%r5, %r4}; st.global.v2.u32 [%d4+8], {%r3, %r2};
  ld.global.u8 %r6, [%d4+1]; st.global.u16 [%d4+2], %r6;""")
    before = np.arange(128, dtype=np.uint32) * 1000
    expected = before.reshape(32, 4)[:, ::-1].copy()
    halves = expected.view(np.uint16).reshape(32, 8)
    halves[:, 1] = expected.view(np.uint8).reshape(32, 16)[:, 1]
    assert (run(text, before, 32) == expected.reshape(-1)).all()


def atomics() -> None:
    text = entry("""
  atom.global.add.u32 %r2, [%d1], %r1; atom.global.max.s32 %r2, [%d1+4], %r1; red.global.inc.u32 [%d1+8], 4;
  red.global.or.b32 [%d1+12], %r1; atom.global.cas.b32 %r3, [%d1+16], 0, 7; red.global.add.f32 [%d1+20], 0f3F000000;
  setp.eq.u32 %p1, %r3, 0; @%p1 st.global.u32 [%d1+24], %r1; red.global.dec.u32 [%d1+28], 9;""")
    out = run(text, np.zeros(8, np.uint32), 64, blocks=2)
    assert out[:5].tolist() == [2 * 2016, 63, 128 % 5, 63, 7]
    assert out.view(np.float32)[5] == 64
    assert (out[6], out[7]) == (0, (-128) % 10)


def barriers_and_votes() -> None:
    text = entry("""
  setp.lt.u32 %p1, %r1, 40; bar.red.popc.u32 %r2, 0, %p1; bar.red.and.pred %p2, 0, %p1; selp.u32 %r3, 1000, 0, %p2;
  and.b32 %r4, %r1, 3; match.any.sync.b32 %r5, %r4, -1; redux.sync.add.u32 %r6, %r1, -1;
  vote.sync.any.pred %p3, %p1, -1; selp.u32 %r7, 100000, 0, %p3; add.u32 %r2, %r2, %r3; add.u32 %r2, %r2, %r7;
  st.global.u32 [%d3], %r2; st.global.u32 [%d3+256], %r5; st.global.u32 [%d3+512], %r6;""")
    out = run(text, np.zeros(192, np.uint32), 64).reshape(3, 64)
    assert out[0].tolist() == [40 + 100000] * 64
    assert out[1].tolist() == [0x11111111 << t % 4 for t in range(64)]
    assert out[2].tolist() == [sum(range(32))] * 32 + [sum(range(32, 64))] * 32


def half_precision() -> None:
    text = entry("""
  ld.global.u32 %r2, [%d3]; ld.global.u32 %r3, [%d3+128];
  fma.rn.f16x2 %r4, %r2, %r3, %r2; {.reg.b32 q; mov.b32 q, %r4; st.global.u32 [%d3], q;}
  mov.b32 {%h1, %h2}, %r3; cvt.f32.f16 %f1, %h1; cvt.rn.bf16.f32 %h3, %f1; cvt.u32.u16 %r5, %h3;
  st.global.u32 [%d3+128], %r5;""")
    halves = np.random.default_rng(5).normal(size=(2, 64)).astype(np.float16)
    out = run(text, halves.reshape(-1).view(np.uint32), 32)
    a, b = halves.astype(np.float64)
    assert (out[:32].view(np.float16) == (a * b + a).astype(np.float16)).all()
    bits = halves[1, ::2].astype(np.float32).view(np.uint32)
    assert (out[32:] == (bits + 0x7FFF + (bits >> 16 & 1)) >> 16).all()


def matrices() -> None:
    """A 16x16 by 16x8 product of half precision with the layout of the fragments written out in numpy."""
    text = entry("""
  ld.global.u32 %r2, [%d3]; ld.global.u32 %r3, [%d3+128]; ld.global.u32 %r4, [%d3+256]; ld.global.u32 %r5, [%d3+384];
  ld.global.u32 %r6, [%d3+512]; ld.global.u32 %r7, [%d3+640];
  mov.f32 %f1, 0f3F800000;
  mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f2, %f3, %f4, %f5}, {%r2, %r3, %r4, %r5}, {%r6, %r7},
    {%f1, %f1, %f1, %f1};
  st.global.f32 [%d3], %f2; st.global.f32 [%d3+128], %f3;
  st.global.f32 [%d3+256], %f4; st.global.f32 [%d3+384], %f5;""")
    rng = np.random.default_rng(6)
    a, b = rng.integers(-4, 4, (16, 16)).astype(np.float16), rng.integers(-4, 4, (16, 8)).astype(np.float16)
    registers = np.zeros((6, 32, 2), np.float16)
    for t in range(32):
        g, q = divmod(t, 4)
        for r, (row, column) in enumerate([(g, 2 * q), (g + 8, 2 * q), (g, 2 * q + 8), (g + 8, 2 * q + 8)]):
            registers[r, t] = a[row, column : column + 2]
        for r, row in enumerate([2 * q, 2 * q + 8]):
            registers[4 + r, t] = b[row : row + 2, g]
    out = run(text, registers.reshape(-1).view(np.uint32), 32).view(np.float32).reshape(6, 32)
    product = a.astype(np.float32) @ b.astype(np.float32) + 1
    for t in range(32):
        g, q = divmod(t, 4)
        expected = [product[g, 2 * q], product[g, 2 * q + 1], product[g + 8, 2 * q], product[g + 8, 2 * q + 1]]
        assert out[:4, t].tolist() == expected


def approximate_functions() -> None:
    """The documented error: two units in the last place of the exact result."""
    names = ["sin", "cos", "ex2", "lg2", "rsqrt", "tanh", "rcp", "sqrt"]
    stores = "".join(f"{n}.approx.f32 %f2, %f1; st.global.f32 [%d3+{128 * k}], %f2;\n" for k, n in enumerate(names))
    values = np.zeros(256, np.float32)
    values[:32] = np.random.default_rng(7).uniform(0.1, 6, 32)
    out = run(entry("  ld.global.f32 %f1, [%d3];\n" + stores), values, 32).reshape(8, 32)
    x = values[:32].astype(np.float64)
    exact = [np.sin(x), np.cos(x), np.exp2(x), np.log2(x), 1 / np.sqrt(x), np.tanh(x), 1 / x, np.sqrt(x)]
    for have, wanted in zip(out, exact, strict=True):
        assert np.allclose(have, wanted, rtol=2.0**-22, atol=2.0**-24)


PRINTING = """
.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 v);
.global .align 1 .b8 format[14] = {116, 37, 100, 32, 37, 46, 50, 102, 10, 0};
""" + entry("""
  .local .align 8 .b8 depot[16];
  .reg .b64 %SP; .reg .f64 %x;
  mov.u64 %SP, depot; cvta.local.u64 %SP, %SP; st.u32 [%SP], %r1;
  cvt.rn.f64.u32 %x, %r1; mul.f64 %x, %x, 0d3FE0000000000000;
  st.f64 [%SP+8], %x; mov.u64 %d4, format;
  { .param .b64 x0; .param .b64 x1; .param .b32 y; st.param.b64 [x0], %d4; st.param.b64 [x1], %SP;
    call.uni (y), vprintf, (x0, x1); ld.param.b32 %r2, [y]; }
  st.global.u32 [%d3], %r2;""")


def linked_texts() -> None:
    """A kernel calls a function and uses a variable of another text."""
    user = ".extern .func (.param .b32 y) triple(.param .b32 x);\n.extern .global .align 4 .u32 offset;\n" + entry("""
  { .param .b32 x; .param .b32 y; st.param.b32 [x], %r1; call.uni (y), triple, (x); ld.param.b32 %r2, [y]; }
  ld.global.u32 %r3, [offset]; add.u32 %r2, %r2, %r3; st.global.u32 [%d3], %r2;""")
    library = """.visible .global .align 4 .u32 offset = 5;
.visible .func (.param .b32 y) triple(.param .b32 x)
{ .reg .b32 %r<3>; ld.param.u32 %r1, [x]; mul.lo.u32 %r1, %r1, 3; st.param.b32 [y], %r1; ret; }
"""
    state = ok(driver.cuLinkCreate(0, [], []))
    for text in (user, library):
        data = (HEAD + text).encode()
        ok(driver.cuLinkAddData(state, driver.CUjitInputType.CU_JIT_INPUT_PTX, data, len(data), b"x", 0, [], []))
    image, size = ok(driver.cuLinkComplete(state))
    module = load(ctypes.string_at(image, size))
    ok(driver.cuLinkDestroy(state))
    out = launch(ok(driver.cuModuleGetFunction(module, b"k")), np.zeros(32, np.uint32), 32)
    assert out.tolist() == [3 * t + 5 for t in range(32)]


def fat_binaries() -> None:
    """PTX in a fat binary is executed, stored or compressed as one run of LZ4 literals."""
    text = (HEAD + entry("  add.u32 %r2, %r1, 9; st.global.u32 [%d3], %r2;")).encode() + b"\0"
    rest = len(text) - 15
    packed = bytes([0xF0]) + b"\xff" * (rest // 255) + bytes([rest % 255]) + text
    for payload, flags in ((text, 0), (packed, 0x2000)):
        size = (len(payload) + 7) // 8 * 8
        head = struct.pack("<HHIQIIIIQQQQ", 1, 0x101, 64, size, len(payload), 0, 0, 80, 0, flags, 0, len(text))
        image = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 64 + size) + head + payload.ljust(size, b"\0")
        library = ok(driver.cuLibraryLoadData(image, [], [], 0, [], [], 0))
        kernel = ok(driver.cuLibraryGetKernel(library, b"k"))
        out = launch(ok(driver.cuKernelGetFunction(kernel)), np.zeros(8, np.uint32), 8)
        assert out.tolist() == list(range(9, 17))
        ok(driver.cuLibraryUnload(library))


def variables_are_shared_with_the_host() -> None:
    text = HEAD + ".visible .global .align 4 .u32 total = 3;\n" + entry("  red.global.add.u32 [total], %r1;")
    module = load(text.encode())
    pointer, size = ok(driver.cuModuleGetGlobal(module, b"total"))
    assert size == 4
    launch(ok(driver.cuModuleGetFunction(module, b"k")), np.zeros(1, np.uint32), 4)
    value = np.zeros(1, np.uint32)
    ok(driver.cuMemcpyDtoH(value, pointer, 4))
    assert value[0] == 3 + 6


def refused_kernels() -> None:
    """A kernel that cannot be executed loads, and its launch is refused; the other kernel of the module runs."""
    text = HEAD + entry("  st.global.u32 [%d3], 1;") + entry("  vadd.s32.s32.s32 %r2, %r1, %r1;", "other")
    module = load(text.encode())
    other = ok(driver.cuModuleGetFunction(module, b"other"))
    refused = driver.cuLaunchKernel(other, 1, 1, 1, 1, 1, 1, 0, 0, ((0,), (ctypes.c_uint64,)), 0)
    assert code(refused) == "CUDA_ERROR_NOT_SUPPORTED"
    assert launch(ok(driver.cuModuleGetFunction(module, b"k")), np.zeros(2, np.uint32), 2).tolist() == [1, 1]


def captured_launches() -> None:
    """A graph executes its kernels each time it is launched."""
    module = load((HEAD + entry("  ld.global.u32 %r2, [%d3]; add.u32 %r2, %r2, 2; st.global.u32 [%d3], %r2;")).encode())
    function = ok(driver.cuModuleGetFunction(module, b"k"))
    stream, pointer = ok(driver.cuStreamCreate(0)), ok(driver.cuMemAlloc(16))
    ok(driver.cuMemsetD32(pointer, 0, 4))
    ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    ok(driver.cuLaunchKernel(function, 1, 1, 1, 4, 1, 1, 0, stream, ((int(pointer),), (ctypes.c_uint64,)), 0))
    graph = ok(driver.cuStreamEndCapture(stream))
    runner = ok(driver.cuGraphInstantiate(graph, 0))
    for _ in range(3):
        ok(driver.cuGraphLaunch(runner, stream))
    ok(driver.cuStreamSynchronize(stream))
    out = np.zeros(4, np.uint32)
    ok(driver.cuMemcpyDtoH(out, pointer, 16))
    assert out.tolist() == [6, 6, 6, 6]


ok(driver.cuInit(0))
ok(driver.cuCtxCreate(None, 0, ok(driver.cuDeviceGet(0))))
memory_spaces()
vector_accesses()
atomics()
barriers_and_votes()
half_precision()
matrices()
approximate_functions()
assert run(PRINTING, np.zeros(2, np.uint32), 2).tolist() == [2, 2]
linked_texts()
fat_binaries()
variables_are_shared_with_the_host()
refused_kernels()
captured_launches()
print("computed")
