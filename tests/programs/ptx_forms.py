"""Forms of instructions that compilers emit for newer devices, compared with the PTX manual's definitions in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from cuda.bindings import driver
from cuda_helpers import ok
from ptx_instructions import entry, run

RNG = np.random.default_rng(11)
WORDS = RNG.integers(0, 1 << 32, (3, 256), dtype=np.uint64).astype(np.uint32)
WORDS[0, :8] = [0, 1, 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 0x8000, 0x7FFF, 0x00010001]
SPECIAL = [0.0, -0.0, 1e-40, -1e-40, math.inf, -math.inf, math.nan, 65504.0, 65520.0, 1e30, -1e30, 3.4e38, 1.0, -2.5]
FLOATS = np.concatenate([np.repeat(np.float32(SPECIAL), len(SPECIAL)), RNG.normal(size=60).astype(np.float32)])
OTHERS = np.concatenate([np.tile(np.float32(SPECIAL), len(SPECIAL)), RNG.normal(size=60).astype(np.float32)])


def three_words(instruction: str, a: Any = WORDS[0], b: Any = WORDS[1], c: Any = WORDS[2], *, declare: str = "") -> Any:
    """Return what an instruction that computes %r5 from %r2, %r3 and %r4 gives for every triple."""
    text = entry(f"""
  {declare} ld.global.u32 %r2, [%d3]; ld.global.u32 %r3, [%d3+1024]; ld.global.u32 %r4, [%d3+2048]; mov.u32 %r5, %r4;
  {instruction} st.global.u32 [%d3], %r5;""")
    return run(text, np.concatenate([a, b, c]), 256)[:256]


def signed(x: Any, bits: int) -> Any:
    """Return the lower bits as signed numbers."""
    return (x.astype(np.int64) & ((1 << bits) - 1)) - ((x.astype(np.int64) >> (bits - 1) & 1) << bits)


def part(x: Any, bits: int, index: int, *, is_signed: bool) -> Any:
    field = (x >> np.uint32(bits * index)).astype(np.int64) & ((1 << bits) - 1)
    return signed(field, bits) if is_signed else field


def word(x: Any) -> Any:
    return (np.asarray(x, dtype=object) & 0xFFFFFFFF).astype(np.uint64).astype(np.uint32)


def integers() -> None:
    a, b, c = WORDS
    for name, first in (("lo", 0), ("hi", 2)):
        for x in "us":
            for y in "us":
                total = c.astype(np.int64)
                for k in range(2):
                    total = total + part(a, 16, k, is_signed=x == "s") * part(b, 8, first + k, is_signed=y == "s")
                assert (three_words(f"dp2a.{name}.{x}32.{y}32 %r5, %r2, %r3, %r4;") == word(total)).all()
    product = signed(a, 24).astype(object) * signed(b, 24).astype(object)
    assert (three_words("mad24.hi.s32 %r5, %r2, %r3, %r4;") == word((product >> 16) + c.astype(object))).all()
    limited = np.clip((product >> 16) + signed(c, 32).astype(object), -(1 << 31), (1 << 31) - 1)
    assert (three_words("mad24.hi.sat.s32 %r5, %r2, %r3, %r4;") == word(limited)).all()
    for name, choose in (("min", np.minimum), ("max", np.maximum)):
        for kind in ("u16x2", "s16x2", "relu.s16x2"):
            halves = [choose(*(part(x, 16, k, is_signed="s" in kind) for x in (a, b))) for k in range(2)]
            halves = [np.maximum(x, 0) if "relu" in kind else x for x in halves]
            expected = word((halves[0] & 0xFFFF) | (halves[1] & 0xFFFF) << 16)
            assert (three_words(f"{name}.{kind} %r5, %r2, %r3;") == expected).all(), (name, kind)
    short = (b & 63).astype(np.uint32)
    field = [int(x) & ((1 << (int(n) & 31)) - 1) for x, n in zip(a, short, strict=True)]
    assert (three_words("szext.wrap.u32 %r5, %r2, %r3;", b=short) == word(field)).all()
    sign = [
        f - (1 << (n & 31)) if n & 31 and f >> ((n & 31) - 1) else f
        for f, n in zip(field, map(int, short), strict=True)
    ]
    assert (three_words("szext.wrap.s32 %r5, %r2, %r3;", b=short) == word(sign)).all()
    base, offset = (b & 31).astype(np.uint32), (signed(c, 5)).astype(np.int32).view(np.uint32)
    expected = [nth_set(int(x), int(y), int(z)) for x, y, z in zip(a, base, offset.view(np.int32), strict=True)]
    assert (three_words("fns.b32 %r5, %r2, %r3, %r4;", b=base, c=offset) == word(expected)).all()
    combined = "setp.lt.u32 %p2, %r2, %r3; lop3.{op}.b32 %r5|%p1, %r2, %r3, %r4, 0x96, {q}; selp.u32 %r6, 1, 0, %p1; "
    for op, q, combine in (("and", "%p2", np.logical_and), ("or", "!%p2", lambda x, y: x | ~y)):
        line = combined.format(op=op, q=q) + "and.b32 %r5, %r5, -2; or.b32 %r5, %r5, %r6;"
        result = a ^ b ^ c
        assert (three_words(line) == (result & ~np.uint32(1) | combine(result != 0, a < b))).all(), op


def nth_set(bits: int, base: int, offset: int) -> int:
    if offset == 0:
        return base if bits >> base & 1 else -1
    step = 1 if offset > 0 else -1
    places = [at for at in range(base, 32 if step > 0 else -1, step) if bits >> at & 1]
    return places[abs(offset) - 1] if abs(offset) <= len(places) else -1


def flushed(x: Any, smallest: float) -> Any:
    return np.where(np.abs(x) < smallest, np.copysign(0, x), x).astype(x.dtype)


def choose(a: Any, b: Any, *, is_min: bool, is_nan: bool) -> Any:
    """The smaller or larger number, where -0 is below +0, and a NaN counts only if the instruction says so."""
    is_less = (a < b) | ((a == b) & np.signbit(a))
    result = np.where(is_less == is_min, a, b)
    result = np.where((a == b) & (np.signbit(a) == np.signbit(b)), a, result)
    result = np.where(np.isnan(a), b, np.where(np.isnan(b), a, result))
    return np.where(is_nan & (np.isnan(a) | np.isnan(b)), np.nan, result)


def same(got: Any, expected: Any) -> bool:
    """Whether the bits are equal; every NaN equals every other."""
    both = np.isnan(got) & np.isnan(expected)
    return bool(((got.view(f"u{got.itemsize}") == expected.astype(got.dtype).view(f"u{got.itemsize}")) | both).all())


def orders() -> None:
    """min and max of floats and halves: signs, NaN, three operands, flushed subnormal numbers."""
    a, b = FLOATS, OTHERS
    c = np.roll(b, 5)
    with np.errstate(all="ignore"):
        for name in ("min", "max"):
            for nan in ("", ".NaN"):
                pick = lambda x, y, n=name, m=nan: choose(x, y, is_min=n == "min", is_nan=bool(m))  # noqa: E731
                for ftz in ("", ".ftz"):
                    x, y, z = (flushed(v, 2.0**-126) if ftz else v for v in (a, b, c))
                    got = floats(f"{name}{ftz}{nan}.f32 %f5, %f2, %f3;", a, b, c)
                    assert same(got, pick(x, y)), (name, ftz, nan)
                    signs = np.signbit(x) ^ np.signbit(y)
                    size = pick(np.abs(x), np.abs(y))
                    got = floats(f"{name}{ftz}{nan}.xorsign.abs.f32 %f5, %f2, %f3;", a, b, c)
                    assert same(got, np.where(signs, -size, size)), (name, ftz, nan)
                    got = floats(f"{name}{ftz}{nan}.f32 %f5, %f2, %f3, %f4;", a, b, c)
                    assert same(got, pick(pick(x, y), z)), (name, ftz, nan)
                    got = floats(f"{name}{ftz}{nan}.abs.f32 %f5, %f2, %f3, %f4;", a, b, c)
                    assert same(got, pick(pick(np.abs(x), np.abs(y)), np.abs(z))), (name, ftz, nan)
                for kind, dtype in (("f16", np.float16), ("bf16", ml_dtypes.bfloat16)):
                    x, y = a.astype(dtype), b.astype(dtype)
                    size = pick(np.abs(x), np.abs(y)).astype(dtype)
                    expected = np.where(np.signbit(x) ^ np.signbit(y), -size, size)
                    assert same(halves(f"{name}{nan}.xorsign.abs.{kind} %h5, %h2, %h3;", x, y), expected), (name, kind)


def floats(instruction: str, a: Any, b: Any, c: Any) -> Any:
    """Return what an instruction that computes %f5 from %f2, %f3 and %f4 gives."""
    text = "mov.b32 %f2, %r2; mov.b32 %f3, %r3; mov.b32 %f4, %r4; " + instruction + " mov.b32 %r5, %f5;"
    return three_words(text, *(x.astype(np.float32).view(np.uint32) for x in (a, b, c))).view(np.float32)


def halves(instruction: str, a: Any, b: Any, c: Any = None) -> Any:
    """Return what an instruction that computes %h5 from %h2, %h3 and %h4 gives."""
    c = a if c is None else c
    move = "mov.b32 {%h2, %h6}, %r2; mov.b32 {%h3, %h6}, %r3; mov.b32 {%h4, %h6}, %r4; "
    bits = (x.view(np.uint16).astype(np.uint32) for x in (a, b, c))
    return three_words(move + instruction + " mov.b32 %r5, {%h5, %h5};", *bits).astype(np.uint16).view(a.dtype)


def half_flushes() -> None:
    """Subnormal halves are zeros of the same sign, before and after an operation."""
    bits = RNG.integers(0, 1 << 16, (3, 256)).astype(np.uint16)
    bits[0, :128] &= 0x87FF
    bits[1, :128] &= 0x8FFF
    a, b, c = bits.view(np.float16)
    with np.errstate(all="ignore"):
        x, y, z = (flushed(v, 2.0**-14) for v in (a, b, c))
        for name, expected in (("add", x + y), ("sub", x - y), ("mul", x * y)):
            assert same(
                halves(f"{name}.ftz.f16 %h5, %h2, %h3;", a, b), flushed(expected.astype(np.float16), 2.0**-14)
            ), name
        exact = x.astype(np.float64) * y.astype(np.float64) + z.astype(np.float64)
        assert same(halves("fma.rn.ftz.f16 %h5, %h2, %h3, %h4;", a, b, c), flushed(exact.astype(np.float16), 2.0**-14))
        got = halves("setp.lt.ftz.f16 %p1, %h2, %h3; selp.b16 %h5, 1, 0, %p1;", a, b).view(np.uint16)
        assert (got == (x < y)).all()
        got = halves("set.ltu.u16.f16 %h5, %h2, %h3;", a, b).view(np.uint16)
        assert (got == np.where(~(a >= b), 0xFFFF, 0)).all()
        mixed = floats("cvt.rn.f16.f32 %h2, %f2; add.f32.f16 %f5, %h2, %f3;", FLOATS, OTHERS, OTHERS)
        assert same(mixed, FLOATS.astype(np.float16).astype(np.float32) + OTHERS)


def extremes_of_a_warp() -> None:
    """redux of floats: a NaN counts only if the instruction says so."""
    values = FLOATS
    for name, pick in (("min", np.fmin), ("max", np.fmax)):
        for ending in ("", ".abs", ".NaN", ".abs.NaN"):
            got = floats(f"redux.sync.{name}{ending}.f32 %f5, %f2, -1;", values, values, values).reshape(8, 32)
            sizes = (np.abs(values) if "abs" in ending else values).reshape(8, 32)
            expected = pick.reduce(sizes, axis=1)
            expected = np.where(np.isnan(sizes).any(1), np.nan, expected) if "NaN" in ending else expected
            assert np.array_equal(got, np.repeat(expected, 32).reshape(8, 32), equal_nan=True), (name, ending)


def pairs_of_floats() -> None:
    a, b = FLOATS, OTHERS
    pack = "mov.b64 %d4, {%r2, %r3}; mov.b64 %d5, {%r3, %r4}; "
    with np.errstate(all="ignore"):
        for name, low, high in (("add", a + b, b + a), ("mul", a * b, b * a), ("sub", a - b, b - a)):
            for index, expected in ((0, low), (1, high)):
                line = f"{pack}{name}.rn.f32x2 %d6, %d4, %d5; mov.b64 {{%r6, %r7}}, %d6; mov.u32 %r5, %r{6 + index};"
                got = three_words(line, *(x.view(np.uint32) for x in (a, b, a))).view(np.float32)
                assert same(got, expected), (name, index)


def conversions() -> None:
    """Finite results of conversions, conversions of pairs towards zero, and packed integers."""
    a, b = FLOATS, OTHERS
    with np.errstate(all="ignore"):
        for kind, dtype, largest in (
            ("f16", np.float16, 65504.0),
            ("bf16", ml_dtypes.bfloat16, float(ml_dtypes.finfo("bfloat16").max)),
        ):
            expected = np.clip(a, -largest, largest).astype(dtype)
            got = halves_of(f"cvt.rn.satfinite.{kind}.f32 %h5, %f2;", dtype)
            assert same(got, expected), kind
            low, high = (np.clip(x, -largest, largest).astype(dtype) for x in (b, a))
            words = floats(f"cvt.rn.satfinite.{kind}x2.f32 %r5, %f2, %f3; mov.b32 %f5, %r5;", a, b, b).view(np.uint32)
            assert same(words.astype(np.uint16).view(dtype), low)
            assert same((words >> 16).astype(np.uint16).view(dtype), high)
            words = floats(f"cvt.rz.{kind}x2.f32 %r5, %f2, %f3; mov.b32 %f5, %r5;", a, b, b).view(np.uint32)
            got = (words >> 16).astype(np.uint16).view(dtype)
            finite = np.isfinite(a)
            down = got[finite].astype(np.float64)
            assert (np.abs(down) <= np.abs(a[finite].astype(np.float64))).all(), kind
            up = np.abs(
                np.nextafter(got[finite], np.where(a[finite] < 0, -np.inf, np.inf).astype(dtype)).astype(np.float64)
            )
            assert (up > np.abs(a[finite].astype(np.float64))).all(), kind
    numbers = WORDS[0] >> (WORDS[2] % 32).astype(np.uint32)
    for kind, bits in (("u16", 16), ("s16", 16), ("u8", 8), ("s8", 8), ("u4", 4), ("s2", 2)):
        low, high = (0, (1 << bits) - 1) if kind[0] == "u" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        first, second = (np.clip(signed(x, 32), low, high) & ((1 << bits) - 1) for x in (numbers, WORDS[1]))
        more = bits < 16
        expected = second | first << bits | (WORDS[2].astype(np.int64) << (2 * bits) if more else 0)
        line = f"cvt.pack.sat.{kind}.s32{'.b32' if more else ''} %r5, %r2, %r3{', %r4' if more else ''};"
        assert (three_words(line, a=numbers) == word(expected)).all(), kind


def halves_of(instruction: str, dtype: Any) -> Any:
    words = floats(instruction + " mov.b32 %f5, {%h5, %h5};", FLOATS, OTHERS, OTHERS).view(np.uint32)
    return words.astype(np.uint16).view(dtype)


def vectors() -> None:
    """Registers of 128 bits, vectors of special registers, and atomic operations on vectors."""
    text = entry("""
  .reg .b128 %q<3>; .reg .v4 .u32 %v; shl.b32 %r2, %r1, 4; cvt.u64.u32 %d4, %r2; add.u64 %d4, %d1, %d4;
  ld.global.b128 %q1, [%d4]; mov.b128 {%d5, %d6}, %q1; mov.b128 %q2, {%d6, %d5}; st.global.b128 [%d4], %q2;
  mov.v4.u32 {%r4, _, _, %r5}, %tid; mov.v4.u32 %v, %ntid; add.u32 %r4, %r4, %v.x; add.u32 %r4, %r4, %r5;
  st.global.u32 [%d3+512], %r4;""")
    before = np.arange(160, dtype=np.uint32)
    out = run(text, before, 32)
    assert (out[:128].reshape(32, 2, 2) == before[:128].reshape(32, 2, 2)[:, ::-1]).all()
    assert (out[128:] == np.arange(32) + 32).all()
    text = entry("""
  .reg .b128 %q<4>; mov.u64 %d4, 5; mov.u64 %d5, 6; mov.b128 %q1, {%d4, %d5}; cvt.u64.u32 %d6, %r1;
  mov.b128 %q2, {%d6, %d5}; mov.u64 %d7, 0; mov.u64 %d8, 0; mov.b128 %q3, {%d7, %d8};
  setp.lt.u32 %p1, %r1, 2; @%p1 atom.global.cas.b128 %q0, [%d1], %q3, %q1; setp.eq.u32 %p2, %r1, 2;
  @%p2 atom.global.exch.b128 %q0, [%d1+16], %q2;""")
    assert run(text, np.zeros(8, np.uint32), 32).tolist() == [5, 0, 6, 0, 2, 0, 6, 0]
    text = entry("""
  cvt.rn.f32.u32 %f1, %r1; mov.f32 %f2, 0f3F800000; mov.f32 %f3, 0f40000000; mov.f32 %f4, 0fBF800000;
  red.global.v4.f32.add [%d1], {%f1, %f2, %f3, %f4}; atom.global.v2.f32.add {%f5, %f6}, [%d1+16], {%f2, %f1};
  cvt.rn.f16.u32 %h1, %r1; mov.b32 %r4, {%h1, %h1}; atom.global.max.noftz.v2.f16x2 {%r5, %r6}, [%d1+32], {%r4, %r4};""")
    out = run(text, np.zeros(12, np.uint32), 32)
    assert out[:6].view(np.float32).tolist() == [496.0, 32.0, 64.0, -32.0, 32.0, 496.0]
    assert (out[8:10].view(np.float16) == 31).all()


def tiles() -> None:
    """Products of tiles: doubles, single bits, limited sums, halves as sums of small numbers; and transposition."""
    rng = np.random.default_rng(5)
    lines = "".join(f"ld.global.f64 %g{k}, [%d4+{256 * k}]; " for k in range(16))
    g = [f"%g{k}" for k in range(16)]
    for k in (4, 8, 16):
        a, b, c = rng.normal(size=(16, k)), rng.normal(size=(k, 8)), rng.normal(size=(16, 8))
        count = k // 2
        registers = np.zeros((16, 32))
        for t in range(32):
            for r in range(count):
                registers[r, t] = a[t // 4 + 8 * (r % 2), t % 4 + r // 2 * 4]
            for r in range(count // 2):
                registers[count + r, t] = b[t % 4 + r * 4, t // 4]
            for r in range(4):
                registers[12 + r, t] = c[t // 4 + 8 * (r // 2), t % 4 * 2 + r % 2]
        stores = "".join(f"st.global.f64 [%d4+{256 * r}], %g{12 + r}; " for r in range(4))
        text = entry(f""".reg .f64 %g<16>; shl.b32 %r2, %r1, 3; cvt.u64.u32 %d4, %r2; add.u64 %d4, %d1, %d4; {lines}
  mma.sync.aligned.m16n8k{k}.row.col.f64.f64.f64.f64 {{{", ".join(g[12:])}}}, {{{", ".join(g[:count])}}},
  {{{", ".join(g[count : count + count // 2])}}}, {{{", ".join(g[12:])}}}; {stores}""")
        out = run(text, registers.reshape(-1).view(np.uint32), 32).view(np.float64).reshape(16, 32)
        expected = a @ b + c
        got = np.zeros((16, 8))
        for t in range(32):
            for r in range(4):
                got[t // 4 + 8 * (r // 2), t % 4 * 2 + r % 2] = out[r, t]
        assert np.allclose(got, expected, rtol=1e-13, atol=1e-13), k
    words = rng.integers(0, 1 << 32, 64, dtype=np.uint64).astype(np.uint32)
    bits = ((words[:, None] >> np.arange(32, dtype=np.uint32)) & 1).astype(np.int64).reshape(2, 8, 128)
    for op, expected in (("and", bits[0] @ bits[1].T), ("xor", (bits[0][:, None] ^ bits[1][None]).sum(2))):
        text = entry(f"""ld.global.u32 %r2, [%d3]; ld.global.u32 %r3, [%d3+128]; mov.u32 %r4, 5; mov.u32 %r5, 6;
  mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.{op}.popc {{%r4, %r5}}, {{%r2}}, {{%r3}}, {{%r4, %r5}};
  st.global.u32 [%d3], %r4; st.global.u32 [%d3+128], %r5;""")
        out = run(text, words, 32).reshape(2, 32)
        assert (out.T.reshape(8, 8) == expected + [5, 6] * 4).all(), op
    text = entry("""mov.u32 %r2, 0x7f7f7f7f; mov.u32 %r4, 0x7ffffff0;
  mma.sync.aligned.m8n8k16.row.col.satfinite.s32.s8.s8.s32 {%r4, %r5}, {%r2}, {%r2}, {%r4, %r4};
  st.global.u32 [%d3], %r4;""")
    assert (run(text, np.zeros(32, np.uint32), 32) == 0x7FFFFFFF).all()
    text = entry(
        """ld.global.u32 %r2, [%d3]; movmatrix.sync.aligned.m8n8.trans.b16 %r3, %r2; st.global.u32 [%d3], %r3;"""
    )
    matrix = rng.integers(0, 1 << 16, (8, 8)).astype(np.uint16)
    assert (run(text, matrix.reshape(-1).view(np.uint32), 32).view(np.uint16).reshape(8, 8) == matrix.T).all()


def quads() -> None:
    """Four products of 8x4 by 4x8 halves, each by four threads of both halves of the warp, in every layout."""
    rng = np.random.default_rng(6)
    for layout in ("row.col", "row.row", "col.row", "col.col"):
        for total, start in (("f32", "f32"), ("f16", "f16"), ("f32", "f16")):
            a, b, c = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((4, 8, 4), (4, 4, 8), (4, 8, 8)))
            words = np.zeros((12, 32), np.uint32)
            for t in range(32):
                quad, one, upper = t % 16 // 4, t % 4, t // 16 * 4
                x = a[quad, upper + one] if layout.startswith("row") else a[quad, upper : upper + 4, one]
                y = b[quad, one, upper : upper + 4] if layout.endswith("row") else b[quad, :, upper + one]
                words[0:2, t], words[2:4, t] = (np.ascontiguousarray(v).view(np.uint32) for v in (x, y))
                if start == "f16":
                    words[4:8, t] = c[quad, upper + one].view(np.uint32)
                else:
                    words[4:12, t] = [np.float32(c[quad][at]).view(np.uint32) for at in places_of_floats(t)]
            loads = "".join(f"ld.global.u32 %q{k}, [%d3+{128 * k}]; " for k in range(12))
            sums = ", ".join(f"%q{k}" for k in range(4, 8 if start == "f16" else 12))
            results = ", ".join(f"%s{k}" for k in range(4 if total == "f16" else 8))
            stores = "".join(f"st.global.u32 [%d3+{128 * k}], %s{k}; " for k in range(4 if total == "f16" else 8))
            text = entry(f""".reg .b32 %q<12>, %s<8>; {loads}
  mma.sync.aligned.m8n8k4.{layout}.{total}.f16.f16.{start} {{{results}}}, {{%q0, %q1}}, {{%q2, %q3}}, {{{sums}}};
  {stores}""")
            out = run(text, words.reshape(-1), 32).reshape(12, 32)
            expected = a.astype(np.float32) @ b.astype(np.float32) + c
            for t in range(32):
                quad, row = t % 16 // 4, t % 4 + t // 16 * 4
                if total == "f16":
                    assert (out[:4, t].copy().view(np.float16) == expected[quad, row]).all(), (layout, total, start)
                else:
                    wanted = [expected[quad][at] for at in places_of_floats(t)]
                    assert out[:8, t].copy().view(np.float32).tolist() == wanted, (layout, total, start)


def places_of_floats(t: int) -> list[tuple[int, int]]:
    """The row and column of each of the eight floats of a sum that a thread holds, as the PTX manual lists them."""
    return [((t & 1) + (e & 2) + t // 16 * 4, (e & 4) + (t & 2) + (e & 1)) for e in range(8)]


def copies() -> None:
    """Bulk copies to and from shared memory, with a barrier, a reduction and a fill; an ignored source."""
    text = ".shared .align 16 .b8 buffer[512];\n.shared .align 8 .b64 barrier;\n" + entry("""
  setp.eq.u32 %p1, %r1, 0; mov.u32 %r2, buffer; mov.u32 %r3, barrier;
  @%p1 mbarrier.init.shared.b64 [%r3], 32; bar.sync 0;
  mov.u32 %r4, 256;
  @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d1], %r4, [%r3];
  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 %d4, [%r3], %r4; @!%p1 mbarrier.arrive.shared::cta.b64 %d4, [%r3];
WAIT: mbarrier.try_wait.shared::cta.b64 %p2, [%r3], %d4; @!%p2 bra WAIT;
  shl.b32 %r5, %r1, 2; add.u32 %r5, %r5, %r2; ld.shared.u32 %r6, [%r5]; add.u32 %r6, %r6, 1; st.shared.u32 [%r5], %r6;
  bar.sync 0; fence.proxy.async.shared::cta; mov.u32 %r7, 128;
  @%p1 cp.async.bulk.global.shared::cta.bulk_group [%d1+512], [%r2], %r7;
  @%p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d1+512], [%r2+128], %r7;
  cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; bar.sync 0;
  @%p1 st.bulk.weak.shared::cta [%r2], 64, 0; bar.sync 0; ld.shared.u32 %r6, [%r5]; st.global.u32 [%d3+768], %r6;
  setp.lt.u32 %p3, %r1, 16; shl.b32 %r5, %r1, 4; add.u32 %r5, %r5, %r2; and.b32 %r8, %r1, 1; setp.ne.u32 %p2, %r8, 0;
  @%p3 cp.async.cg.shared.global [%r5], [%d1], 16, %p2; cp.async.wait_all; @%p3 ld.shared.u32 %r6, [%r5+4];
  @%p3 st.global.u32 [%d3+896], %r6;""")
    before = np.zeros(256, np.uint32)
    before[:64] = np.arange(64) + 10
    out = run(text, before, 32)
    assert (out[128:160] == (np.arange(32) + 11) + (np.arange(32) + 42)).all()
    assert (out[192:224] == [0] * 16 + list(np.arange(16, 32) + 11)).all()
    assert (out[224:240] == np.where(np.arange(16) % 2, 0, 11)).all()


CASES: list[Callable[[], None]] = [
    integers,
    orders,
    half_flushes,
    extremes_of_a_warp,
    pairs_of_floats,
    conversions,
    vectors,
    tiles,
    quads,
    copies,
]


def main() -> None:
    ok(driver.cuInit(0))
    ok(driver.cuCtxCreate(None, 0, ok(driver.cuDeviceGet(0))))
    for case in CASES:
        case()
    print("computed")


if __name__ == "__main__":
    main()
