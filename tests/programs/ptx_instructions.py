"""Instructions that compilers emit: tensor cores, barriers in shared memory, groups of threads, small numbers."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from cuda.bindings import driver
from cuda_helpers import ok

HEAD = ".version 8.4\n.target sm_89\n.address_size 64\n"
REGISTERS = """
  .reg .b64 %d<12>; .reg .b32 %r<32>; .reg .f32 %f<8>; .reg .b16 %h<8>; .reg .pred %p<4>;
  ld.param.u64 %d1, [a]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; add.u64 %d3, %d1, %d2;
"""


def entry(body: str) -> str:
    return f".visible .entry k(.param .u64 a)\n{{{REGISTERS}{body}\n  ret;\n}}\n"


def run(text: str, array: Any, threads: int, *, blocks: int = 1, is_cooperative: bool = False) -> Any:
    function = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData((HEAD + text).encode())), b"k"))
    pointer = ok(driver.cuMemAlloc(array.nbytes))
    ok(driver.cuMemcpyHtoD(pointer, array, array.nbytes))
    values = ((int(pointer),), (ctypes.c_uint64,))
    if is_cooperative:
        ok(driver.cuLaunchCooperativeKernel(function, blocks, 1, 1, threads, 1, 1, 0, 0, values))
    else:
        ok(driver.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, 0, values, 0))
    out = np.empty_like(array)
    ok(driver.cuMemcpyDtoH(out, pointer, array.nbytes))
    return out


def groups_of_threads() -> None:
    """Tiles of 16 threads name different members in one instruction."""
    text = entry("""
  and.b32 %r2, %r1, 16; mov.u32 %r3, 65535; shl.b32 %r3, %r3, %r2;
  redux.sync.add.u32 %r4, %r1, %r3; st.global.u32 [%d3], %r4;
  shfl.sync.bfly.b32 %r5, %r1, 1, 31, %r3; st.global.u32 [%d3+128], %r5;
  setp.gt.u32 %p1, %r1, 20; vote.sync.ballot.b32 %r6, %p1, %r3; st.global.u32 [%d3+256], %r6;
  and.b32 %r7, %r1, 1; match.any.sync.b32 %r8, %r7, %r3; st.global.u32 [%d3+384], %r8;""")
    out = run(text, np.zeros(128, np.uint32), 32).reshape(4, 32)
    assert out[0].tolist() == [sum(range(16))] * 16 + [sum(range(16, 32))] * 16
    assert out[1].tolist() == [t ^ 1 for t in range(32)]
    assert out[2].tolist() == [0] * 16 + [0xFFE00000] * 16
    assert out[3].tolist() == [(0x5555 if t % 2 == 0 else 0xAAAA) << (t & 16) for t in range(32)]


def barrier_objects() -> None:
    """Two warps wait for each other three times at a barrier in shared memory, by its state and by parity."""
    wait = """
WAIT{n}:
  {test}
  @!%p1 bra WAIT{n};
"""
    rounds = "".join(
        """
  mbarrier.arrive.shared.b64 %d4, [barrier];"""
        + wait.format(
            n=n,
            test="mbarrier.test_wait.shared.b64 %p1, [barrier], %d4;"
            if n < 2
            else f"mbarrier.try_wait.parity.shared.b64 %p1, [barrier], {n % 2};",
        )
        + """
  mov.u32 %r4, words; xor.b32 %r5, %r1, 63; mad.lo.u32 %r5, %r5, 4, %r4; ld.volatile.shared.u32 %r6, [%r5];
  add.u32 %r7, %r7, %r6; bar.sync 0; mad.lo.u32 %r5, %r1, 4, %r4; st.volatile.shared.u32 [%r5], %r7;"""
        for n in range(3)
    )
    text = ".shared .align 8 .b64 barrier;\n.shared .align 4 .b32 words[64];\n" + entry(
        """
  setp.eq.u32 %p2, %r1, 0; @%p2 mbarrier.init.shared::cta.b64 [barrier], 64;
  mov.u32 %r4, words; mad.lo.u32 %r5, %r1, 4, %r4; st.shared.u32 [%r5], %r1; mov.u32 %r7, 0; bar.sync 0;"""
        + rounds
        + "\n  st.global.u32 [%d3], %r7;"
    )
    words, total = np.arange(64), np.zeros(64, int)
    for _ in range(3):
        total = total + words[::-1]
        words = total
    assert run(text, np.zeros(64, np.uint32), 64).tolist() == total.tolist()


def fragments() -> None:
    """A product of 16x16 matrices with wmma, B in column order, and the sums stored by columns."""
    a_registers, b_registers = (", ".join(f"%r{i}" for i in range(k, k + 8)) for k in (2, 10))
    c = ", ".join(f"%g{i}" for i in range(8))
    text = entry(f"""
  .reg .f32 %g<8>;
  wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {{{a_registers}}}, [%d1], 16;
  wmma.load.b.sync.aligned.col.m16n16k16.global.f16 {{{b_registers}}}, [%d1+512], 16;
  wmma.load.c.sync.aligned.row.m16n16k16.global.f32 {{{c}}}, [%d1+1024], 16;
  wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {{{c}}}, {{{a_registers}}}, {{{b_registers}}}, {{{c}}};
  wmma.store.d.sync.aligned.col.m16n16k16.global.f32 [%d1+1024], {{{c}}}, 16;""")
    rng = np.random.default_rng(8)
    a, b = (rng.integers(-4, 4, (16, 16)).astype(np.float16) for _ in range(2))
    sums = rng.integers(-9, 9, (16, 16)).astype(np.float32)
    before = np.concatenate([one.reshape(-1).view(np.uint32) for one in (a, b, sums)])
    out = run(text, before, 32)[256:].view(np.float32).reshape(16, 16)
    expected = a.astype(np.float32) @ b.astype(np.float32).T + sums
    assert np.array_equal(out.T, expected)


def small_integers() -> None:
    """The product of 8x32 by 32x8 integers of four bits."""
    text = entry("""
  ld.global.u32 %r2, [%d3]; ld.global.u32 %r3, [%d3+128]; mov.u32 %r4, 5; mov.u32 %r5, 6;
  mma.sync.aligned.m8n8k32.row.col.s32.s4.u4.s32 {%r4, %r5}, {%r2}, {%r3}, {%r5, %r4};
  st.global.u32 [%d3], %r4; st.global.u32 [%d3+128], %r5;""")
    before = np.random.default_rng(9).integers(0, 2**32, 64, dtype=np.uint64).astype(np.uint32)
    nibbles = (before[:, None] >> (4 * np.arange(8, dtype=np.uint32))) & 15
    a = np.where(nibbles[:32] > 7, nibbles[:32].astype(int) - 16, nibbles[:32]).reshape(8, 32)
    b = nibbles[32:].astype(int).reshape(8, 32)
    product = (a @ b.T).reshape(32, 2)
    out = run(text, before, 32).view(np.int32).reshape(2, 32)
    assert (out[0] == product[:, 0] + 6).all()
    assert (out[1] == product[:, 1] + 5).all()


def quarter_precision() -> None:
    """Every number of eight bits becomes a half and the same number again."""
    for kind in ("e4m3", "e5m2"):
        text = entry(f"""
  shl.b32 %r2, %r1, 1; add.u32 %r3, %r2, 1; shl.b32 %r3, %r3, 8; or.b32 %r2, %r2, %r3; cvt.u16.u32 %h1, %r2;
  cvt.rn.f16x2.{kind}x2 %r4, %h1; cvt.rn.satfinite.{kind}x2.f16x2 %h2, %r4; cvt.u32.u16 %r5, %h2;
  st.global.u32 [%d3], %r4; shl.b32 %r6, %r1, 2; st.global.u32 [%d3+512], %r5;""")
        out = run(text, np.zeros(256, np.uint32), 128)
        halves, numbers = out[:128].view(np.float16), out[128:].view(np.uint16)[::2].copy().view(np.uint8)
        finite = np.isfinite(halves)
        assert (numbers[finite] == np.arange(256, dtype=np.uint8)[finite]).all()
        assert finite.sum() == (254 if kind == "e4m3" else 248)
        bias, bits = (7, 3) if kind == "e4m3" else (15, 2)
        codes = np.arange(256)[finite]
        exponent, fraction = codes % 128 >> bits, codes % (1 << bits)
        magnitude = np.where(
            exponent, (1 + fraction / 2.0**bits) * 2.0 ** (exponent - bias), fraction * 2.0 ** (1 - bias - bits)
        )
        assert (np.abs(halves[finite].astype(float)) == magnitude).all()


def parts_of_words() -> None:
    """Four bytes at once, and comparisons of two halves."""
    text = entry("""
  ld.global.u32 %r2, [%d3]; ld.global.u32 %r3, [%d3+128]; mov.u32 %r4, 0;
  vabsdiff4.u32.u32.u32.add %r5, %r2, %r3, %r1; vadd4.u32.u32.u32.sat %r6, %r2, %r3, %r4;
  set.gt.f16x2.f16x2 %r7, %r2, %r3; setp.lt.f16x2 %p1|%p2, %r2, %r3; selp.u32 %r8, 1, 0, %p1; selp.u32 %r9, 2, 0, %p2;
  or.b32 %r8, %r8, %r9;
  st.global.u32 [%d3], %r5; st.global.u32 [%d3+128], %r6;
  st.global.u32 [%d3+256], %r7; st.global.u32 [%d3+384], %r8;""")
    before = np.zeros(128, np.uint32)
    before[:64] = np.random.default_rng(10).integers(0, 0x7B00, (64, 2)).astype(np.uint16).reshape(-1).view(np.uint32)
    bytes_ = before[:64].view(np.uint8).reshape(2, 32, 4).astype(int)
    halves = before[:64].view(np.float16).reshape(2, 32, 2)
    out = run(text, before, 32).reshape(4, 32)
    assert (out[0] == np.abs(bytes_[0] - bytes_[1]).sum(1) + np.arange(32)).all()
    assert (out[1].copy().view(np.uint8).reshape(32, 4) == np.minimum(bytes_[0] + bytes_[1], 255)).all()
    assert (out[2].copy().view(np.float16).reshape(32, 2) == (halves[0] > halves[1])).all()
    assert (out[3] == (halves[0] < halves[1]) @ [1, 2]).all()


def elements_of_arrays() -> None:
    """The address of an element, as tinygrad writes it."""
    text = entry("""
  .local .align 4 .b32 kept[4]; .reg .b64 %at;
  mov.u64 %at, kept[0]; st.local.u32 [%at+8], %r1; mov.u64 %at, kept[2];
  ld.local.u32 %r2, [%at]; st.global.u32 [%d3], %r2;""")
    assert run(text, np.zeros(32, np.uint32), 32).tolist() == list(range(32))


def grid_barrier() -> None:
    """Blocks of a cooperative launch count themselves in the workspace that the launch provides."""
    text = entry("""
  .reg .b64 %w; .reg .b32 %l, %u; mov.u32 %u, %envreg1; mov.u32 %l, %envreg2; mov.b64 %w, {%l, %u};
  setp.ne.u32 %p1, %r1, 0; @%p1 bra END; atom.global.add.u32 %r2, [%w+4], 1;
SPIN: ld.volatile.global.u32 %r3, [%w+4]; setp.lt.u32 %p2, %r3, 8; @%p2 bra SPIN; red.global.add.u32 [%d1], %r3;
END:""")
    assert run(text, np.zeros(4, np.uint32), 32, blocks=8, is_cooperative=True)[0] == 64


def main() -> None:
    ok(driver.cuInit(0))
    ok(driver.cuCtxCreate(None, 0, ok(driver.cuDeviceGet(0))))
    groups_of_threads()
    barrier_objects()
    fragments()
    small_integers()
    quarter_precision()
    parts_of_words()
    elements_of_arrays()
    grid_barrier()
    print("computed")


if __name__ == "__main__":
    main()
