"""Random PTX programs give the results of an independent reference in numpy."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cuda.bindings import driver
from cuda_helpers import Part, ok
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.hook import parts

THREADS, BLOCKS = 64, 2
COUNT = THREADS * BLOCKS
libm = ctypes.CDLL("libm.so.6")
libm.fmaf.restype, libm.fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3
libm.fma.restype, libm.fma.argtypes = ctypes.c_double, [ctypes.c_double] * 3

Values = Any  # an array with one element per thread
W, L, F, D = np.uint32, np.uint64, np.float32, np.float64
LETTER = {W: "w", L: "l", F: "f", D: "d"}
TYPE = {W: "b32", L: "b64", F: "f32", D: "f64"}


def signed(a: Values) -> Values:
    return a.view(np.int32 if a.dtype == W else np.int64)


def canonical(a: Values) -> Values:
    """The device has one NaN of 32 bits."""
    if a.dtype == F:
        a = a.copy()
        a.view(W)[np.isnan(a)] = 0x7FFFFFFF
    return a


def fma(a: Values, b: Values, c: Values) -> Values:
    exact = libm.fmaf if a.dtype == F else libm.fma
    return np.array([exact(x, y, z) for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)], a.dtype)


def high(a: Values, b: Values, *, is_signed: bool) -> Values:
    wide = np.int64 if is_signed else np.uint64
    a, b = (signed(a), signed(b)) if is_signed else (a, b)
    return ((a.astype(wide) * b.astype(wide)) >> wide(32)).astype(np.uint64).astype(W)


def shift_left(a: Values, b: Values) -> Values:
    bits = a.dtype.itemsize * 8
    return np.where(b > bits - 1, 0, a << (b % bits).astype(a.dtype)).astype(a.dtype)


def shift_right(a: Values, b: Values) -> Values:
    bits = a.dtype.itemsize * 8
    return np.where(b > bits - 1, 0, a >> (b % bits).astype(a.dtype)).astype(a.dtype)


def arithmetic_right(a: Values, b: Values) -> Values:
    bits = a.dtype.itemsize * 8
    return (signed(a) >> np.minimum(b, bits - 1).astype(signed(a).dtype)).view(a.dtype)


def reverse(a: Values) -> Values:
    return np.array([int(f"{int(x):032b}"[::-1], 2) for x in a], W)


def truncated(a: Values, kind: Any) -> Values:
    limits = np.iinfo(kind)
    whole = np.trunc(np.nan_to_num(a.astype(np.float64), nan=0.0, posinf=1e30, neginf=-1e30))
    return np.array([min(max(int(x), limits.min), limits.max) for x in whole], kind).view(W)


def smaller(a: Values, b: Values) -> Values:
    picked = np.where(np.isnan(a), b, np.where(np.isnan(b), a, np.where((a < b) | ((a == b) & np.signbit(a)), a, b)))
    return picked.astype(a.dtype)


def larger(a: Values, b: Values) -> Values:
    picked = np.where(np.isnan(a), b, np.where(np.isnan(b), a, np.where((a > b) | ((a == b) & ~np.signbit(a)), a, b)))
    return picked.astype(a.dtype)


def quotient(a: Values, b: Values) -> Values:
    return (
        (np.trunc(signed(a).astype(np.float64) / signed(b).astype(np.float64)))
        .astype(np.int64)
        .astype(np.int32)
        .view(W)
    )


# PTX, the types of result and operands, and the reference. An operand named o is odd, so that it is no zero divisor.
Operation = tuple[str, Any, tuple[Any, ...], Callable[..., Values]]
OPERATIONS: list[Operation] = [
    ("add.u32 {d}, {0}, {1};", W, (W, W), lambda a, b: a + b),
    ("sub.s32 {d}, {0}, {1};", W, (W, W), lambda a, b: a - b),
    ("mul.lo.s32 {d}, {0}, {1};", W, (W, W), lambda a, b: a * b),
    ("mul.hi.u32 {d}, {0}, {1};", W, (W, W), lambda a, b: high(a, b, is_signed=False)),
    ("mul.hi.s32 {d}, {0}, {1};", W, (W, W), lambda a, b: high(a, b, is_signed=True)),
    ("mad.lo.u32 {d}, {0}, {1}, {2};", W, (W, W, W), lambda a, b, c: a * b + c),
    ("mul.wide.u32 {d}, {0}, {1};", L, (W, W), lambda a, b: a.astype(L) * b.astype(L)),
    (
        "mul.wide.s32 {d}, {0}, {1};",
        L,
        (W, W),
        lambda a, b: (signed(a).astype(np.int64) * signed(b).astype(np.int64)).view(L),
    ),
    ("and.b32 {d}, {0}, {1};", W, (W, W), lambda a, b: a & b),
    ("xor.b32 {d}, {0}, {1};", W, (W, W), lambda a, b: a ^ b),
    ("not.b32 {d}, {0};", W, (W,), lambda a: ~a),
    ("shl.b32 {d}, {0}, {1};", W, (W, W), shift_left),
    ("shr.u32 {d}, {0}, {1};", W, (W, W), shift_right),
    ("shr.s32 {d}, {0}, {1};", W, (W, W), arithmetic_right),
    ("min.s32 {d}, {0}, {1};", W, (W, W), lambda a, b: np.minimum(signed(a), signed(b)).view(W)),
    ("max.u32 {d}, {0}, {1};", W, (W, W), np.maximum),
    ("abs.s32 {d}, {0};", W, (W,), lambda a: np.where(signed(a) < 0, W(0) - a, a).astype(W)),
    ("popc.b32 {d}, {0};", W, (W,), lambda a: np.array([int(x).bit_count() for x in a], W)),
    ("clz.b32 {d}, {0};", W, (W,), lambda a: np.array([32 - int(x).bit_length() for x in a], W)),
    ("brev.b32 {d}, {0};", W, (W,), reverse),
    ("or.b32 {t}, {1}, 1; div.u32 {d}, {0}, {t};", W, (W, W), lambda a, b: a // (b | W(1))),
    ("or.b32 {t}, {1}, 1; rem.u32 {d}, {0}, {t};", W, (W, W), lambda a, b: a % (b | W(1))),
    ("or.b32 {t}, {1}, 3; div.s32 {d}, {0}, {t};", W, (W, W), lambda a, b: quotient(a, b | W(3))),
    ("bfe.u32 {d}, {0}, 5, 9;", W, (W,), lambda a: (a >> W(5)) & W(511)),
    ("bfi.b32 {d}, {0}, {1}, 4, 8;", W, (W, W), lambda a, b: (b & W(0xFFFFF00F)) | ((a & W(255)) << W(4))),
    ("lop3.b32 {d}, {0}, {1}, {2}, 0xE8;", W, (W, W, W), lambda a, b, c: (a & b) | (a & c) | (b & c)),
    ("prmt.b32 {d}, {0}, {1}, 0x5410;", W, (W, W), lambda a, b: (a & W(0xFFFF)) | (b << W(16))),
    ("shf.l.wrap.b32 {d}, {0}, {1}, 7;", W, (W, W), lambda a, b: (b << W(7)) | (a >> W(25))),
    ("add.s64 {d}, {0}, {1};", L, (L, L), lambda a, b: a + b),
    ("mul.lo.s64 {d}, {0}, {1};", L, (L, L), lambda a, b: a * b),
    ("shr.s64 {d}, {0}, {1};", L, (L, W), arithmetic_right),
    ("shl.b64 {d}, {0}, {1};", L, (L, W), shift_left),
    ("cvt.u32.u64 {d}, {0};", W, (L,), lambda a: a.astype(W)),
    ("cvt.s64.s32 {d}, {0};", L, (W,), lambda a: signed(a).astype(np.int64).view(L)),
    ("cvt.s32.s8 {d}, {0};", W, (W,), lambda a: (a & W(255)).astype(np.uint8).view(np.int8).astype(np.int32).view(W)),
    ("cvt.rn.f32.s32 {d}, {0};", F, (W,), lambda a: signed(a).astype(F)),
    ("cvt.rn.f32.u64 {d}, {0};", F, (L,), lambda a: a.astype(F)),
    ("cvt.rzi.s32.f32 {d}, {0};", W, (F,), lambda a: truncated(a, np.int32)),
    ("cvt.rzi.u32.f64 {d}, {0};", W, (D,), lambda a: truncated(a, np.uint32)),
    ("cvt.f64.f32 {d}, {0};", D, (F,), lambda a: a.astype(D)),
    ("cvt.rn.f32.f64 {d}, {0};", F, (D,), lambda a: a.astype(F)),
    ("cvt.rn.f16.f32 {h}, {0}; cvt.f32.f16 {d}, {h};", F, (F,), lambda a: a.astype(np.float16).astype(F)),
    ("add.rn.f32 {d}, {0}, {1};", F, (F, F), lambda a, b: a + b),
    ("sub.rn.f32 {d}, {0}, {1};", F, (F, F), lambda a, b: a - b),
    ("mul.rn.f32 {d}, {0}, {1};", F, (F, F), lambda a, b: a * b),
    ("div.rn.f32 {d}, {0}, {1};", F, (F, F), lambda a, b: a / b),
    ("sqrt.rn.f32 {d}, {0};", F, (F,), np.sqrt),
    ("fma.rn.f32 {d}, {0}, {1}, {2};", F, (F, F, F), fma),
    ("min.f32 {d}, {0}, {1};", F, (F, F), smaller),
    ("max.f32 {d}, {0}, {1};", F, (F, F), larger),
    ("neg.f32 {d}, {0};", F, (F,), lambda a: (a.view(W) ^ W(1 << 31)).view(F)),
    ("add.f64 {d}, {0}, {1};", D, (D, D), lambda a, b: a + b),
    ("mul.f64 {d}, {0}, {1};", D, (D, D), lambda a, b: a * b),
    ("fma.rn.f64 {d}, {0}, {1}, {2};", D, (D, D, D), fma),
    (
        "setp.lt.s32 {p}, {0}, {1}; selp.b32 {d}, {0}, {2}, {p};",
        W,
        (W, W, W),
        lambda a, b, c: np.where(signed(a) < signed(b), a, c),
    ),
    ("setp.gtu.f32 {p}, {0}, {1}; selp.f32 {d}, {0}, {1}, {p};", F, (F, F), lambda a, b: np.where(~(a <= b), a, b)),
    ("mov.b64 {d}, {{{0}, {1}}};", L, (W, W), lambda a, b: a.astype(L) | b.astype(L) << L(32)),
]


def by_warp(a: Values, source: Callable[[int], int]) -> Values:
    return np.array([a[t // 32 * 32 + source(t % 32)] for t in range(len(a))], a.dtype)


def ballot(a: Values) -> Values:
    bits = [sum(1 << i for i in range(32) if int(a[w + i]) & 1) for w in range(0, len(a), 32)]
    return np.array([bits[t // 32] for t in range(len(a))], W)


# These involve other threads of the warp or block, so they are used outside branches only.
TOGETHER: list[Operation] = [
    ("shfl.sync.bfly.b32 {d}, {0}, 5, 31, -1;", W, (W,), lambda a: by_warp(a, lambda t: t ^ 5)),
    ("shfl.sync.up.b32 {d}, {0}, 3, 0, -1;", W, (W,), lambda a: by_warp(a, lambda t: t - 3 if t >= 3 else t)),
    ("shfl.sync.down.b32 {d}, {0}, 2, 31, -1;", W, (W,), lambda a: by_warp(a, lambda t: t + 2 if t < 30 else t)),
    ("and.b32 {t}, {0}, 1; setp.ne.u32 {p}, {t}, 0; vote.sync.ballot.b32 {d}, {p}, -1;", W, (W,), ballot),
    (
        "st.shared.u32 [%mine], {0}; bar.sync 0; ld.shared.u32 {d}, [%other]; bar.sync 0;",
        W,
        (W,),
        lambda a: np.array([a[t // THREADS * THREADS + (t + 17) % THREADS] for t in range(COUNT)], W),
    ),
]


@dataclass
class Program:
    """The text of a kernel, and the values of its registers in the reference."""

    text: list[str] = field(default_factory=list)
    values: dict[Any, list[Values]] = field(default_factory=dict)
    made: int = 0

    def name(self, letter: str) -> str:
        self.made += 1
        return f"%{letter}{self.made}"

    def operation(
        self, operation: Operation, picks: list[int], pool: dict[Any, list[tuple[str, Values]]]
    ) -> tuple[Any, str, Values]:
        text, kind, types, reference = operation
        operands = [pool[one][pick % len(pool[one])] for one, pick in zip(types, picks, strict=False)]
        d = self.name(LETTER[kind])
        temporaries = {"t": self.name("w"), "p": self.name("p"), "h": self.name("h")}
        self.text.append("  " + text.format(*[name for name, _ in operands], d=d, **temporaries))
        with np.errstate(all="ignore"):
            value = canonical(np.asarray(reference(*[value for _, value in operands]), kind))
        return kind, d, value


Step = tuple[str, int, list[int]]
steps = st.lists(
    st.tuples(
        st.sampled_from(["plain"] * 8 + ["together", "branch", "loop"]),
        st.integers(0, 10_000),
        st.lists(st.integers(0, 10_000), min_size=4, max_size=4),
    ),
    min_size=1,
    max_size=30,
)


def merge(program: Program, pool: dict[Any, list[tuple[str, Values]]], step: Step, label: int) -> None:
    """Threads for which a bit is set compute a new value of an existing register."""
    _, number, picks = step
    condition, bit = pool[W][picks[3] % len(pool[W])]
    p = program.name("p")
    taken = (bit & W(4)) != 0
    t = program.name("w")
    program.text.append(f"  and.b32 {t}, {condition}, 4; setp.eq.u32 {p}, {t}, 0; @{p} bra ELSE{label};")
    kind, d, value = program.operation(OPERATIONS[number % len(OPERATIONS)], picks, pool)
    target = program.name(LETTER[kind])
    program.text.append(f"  mov.{TYPE[kind]} {target}, {d}; bra.uni END{label};\nELSE{label}:")
    other, value_other = pool[kind][picks[0] % len(pool[kind])]
    program.text.append(f"  mov.{TYPE[kind]} {target}, {other};\nEND{label}:")
    pool[kind].append((target, np.where(taken, value, value_other).astype(kind)))


def loop(program: Program, pool: dict[Any, list[tuple[str, Values]]], step: Step, label: int) -> None:
    """Each thread adds a number as many times as its lowest bits say."""
    _, _, picks = step
    (count, times), (start, value) = pool[W][picks[0] % len(pool[W])], pool[W][picks[1] % len(pool[W])]
    n, total, p = program.name("w"), program.name("w"), program.name("p")
    program.text.append(
        f"  and.b32 {n}, {count}, 7; mov.u32 {total}, {start};\n"
        f"LOOP{label}: setp.eq.u32 {p}, {n}, 0; @{p} bra OUT{label};\n"
        f"  mad.lo.u32 {total}, {total}, 3, {n}; sub.u32 {n}, {n}, 1; bra LOOP{label};\nOUT{label}:"
    )
    left, result = times & W(7), value.copy()
    for _ in range(7):
        result = np.where(left > 0, result * W(3) + left, result)
        left = np.where(left > 0, left - W(1), left)
    pool[W].append((total, result.astype(W)))


def build(program_steps: list[Step], words: Values) -> tuple[str, dict[Any, list[tuple[str, Values]]]]:
    program = Program()
    wide = words.astype(L) * L(0x9E3779B97F4A7C15)
    single = canonical(words.view(F).copy())
    pool: dict[Any, list[tuple[str, Values]]] = {
        W: [("%in", words), ("%self", np.arange(COUNT, dtype=W) % W(THREADS)), ("77", np.full(COUNT, 77, W))],
        L: [("%wide", wide)],
        F: [("%single", single), ("0f3FC00000", np.full(COUNT, 1.5, F))],
        D: [("%double", signed(words).astype(D))],
    }
    for label, step in enumerate(program_steps):
        kind, number, picks = step
        if kind == "branch":
            merge(program, pool, step, label)
        elif kind == "loop":
            loop(program, pool, step, label)
        else:
            table = TOGETHER if kind == "together" else OPERATIONS
            result, d, value = program.operation(table[number % len(table)], picks, pool)
            pool[result].append((d, value))
    body = "\n".join(program.text)
    named = [(TYPE[kind], name) for kind in pool for name, _ in pool[kind] if name.startswith("%")]
    stores = [f"  st.global.{kind} [%out+{at * 8 * COUNT}], {name};" for at, (kind, name) in enumerate(named)]
    text = f"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry test(.param .u64 input, .param .u64 output)
{{
  .reg .b32 %w<{program.made + 1}>, %in, %self, %block, %index, %mine, %other;
  .reg .b64 %l<{program.made + 1}>, %wide, %from, %out, %step;
  .reg .f32 %f<{program.made + 1}>, %single;
  .reg .f64 %d<{program.made + 1}>, %double;
  .reg .b16 %h<{program.made + 1}>;
  .reg .pred %p<{program.made + 1}>;
  .shared .align 4 .b8 area[{THREADS * 4}];
  ld.param.u64 %from, [input];
  ld.param.u64 %out, [output];
  mov.u32 %self, %tid.x;
  mov.u32 %block, %ctaid.x;
  mad.lo.u32 %index, %block, {THREADS}, %self;
  mul.wide.u32 %step, %index, 4;
  add.u64 %from, %from, %step;
  mul.wide.u32 %step, %index, 8;
  add.u64 %out, %out, %step;
  ld.global.u32 %in, [%from];
  ld.global.f32 %single, [%from];
  add.f32 %single, %single, 0f80000000;
  cvt.u64.u32 %wide, %in;
  mul.lo.u64 %wide, %wide, 0x9E3779B97F4A7C15;
  cvt.rn.f64.s32 %double, %in;
  mov.u32 %mine, area;
  shl.b32 %other, %self, 2;
  add.u32 %mine, %mine, %other;
  add.u32 %other, %self, 17;
  rem.u32 %other, %other, {THREADS};
  shl.b32 %other, %other, 2;
  mov.u32 %index, area;
  add.u32 %other, %other, %index;
{body}
{chr(10).join(stores)}
  ret;
}}
"""
    return text, pool


def check(program_steps: list[Step], seed: int) -> None:
    words = np.random.default_rng(seed).integers(0, 1 << 32, COUNT, dtype=np.uint64).astype(W)
    words[:4] = (0, 1, 0xFFFFFFFF, 0x80000000)
    text, pool = build(program_steps, words)
    named = [(kind, name, value) for kind in pool for name, value in pool[kind] if name.startswith("%")]
    rewritten, (kernel,) = parts.rewrite(text.encode())
    assert rewritten is not None, (kernel.reason, text)
    assert kernel.variant is not None
    module = ok(driver.cuModuleLoadData(rewritten))
    function = ok(driver.cuModuleGetFunction(module, b"test"))
    in_parts = ok(driver.cuModuleGetFunction(module, kernel.variant.encode()))
    out = np.zeros((len(named), COUNT), L)
    source, target = ok(driver.cuMemAlloc(words.nbytes)), ok(driver.cuMemAlloc(out.nbytes))
    ok(driver.cuMemcpyHtoD(source, words, words.nbytes))
    types = (ctypes.c_uint64, ctypes.c_uint64)
    ok(driver.cuLaunchKernel(function, BLOCKS, 1, 1, THREADS, 1, 1, 0, 0, ((int(source), int(target)), types), 0))
    ok(driver.cuMemcpyDtoH(out, target, out.nbytes))
    ok(driver.cuMemsetD8(target, 0, out.nbytes))
    for block in range(BLOCKS):
        part = Part.from_buffer_copy(parts.part_parameter((BLOCKS, 1, 1), block))
        values = ((int(source), int(target), part), (*types, None))
        ok(driver.cuLaunchKernel(in_parts, 1, 1, 1, THREADS, 1, 1, 0, 0, values, 0))
    again = np.zeros_like(out)
    ok(driver.cuMemcpyDtoH(again, target, again.nbytes))
    assert (again == out).all(), text
    ok(driver.cuMemFree(source))
    ok(driver.cuMemFree(target))
    ok(driver.cuModuleUnload(module))
    for row, (kind, name, expected) in zip(out, named, strict=True):
        have = row.astype(W).view(kind) if kind in (W, F) else row.view(kind)
        same = (have == expected) | (np.isnan(have) & np.isnan(expected))
        if kind == F:
            same |= have.view(W) == expected.view(W)
        assert same.all(), (name, np.flatnonzero(~same)[:5], have[~same][:5], expected[~same][:5], text)


@settings(deadline=None, derandomize=bool(os.environ.get("CI")), database=None, max_examples=int(sys.argv[1]))
@given(steps, st.integers(0, 1 << 30))
def random_programs(program_steps: list[Step], seed: int) -> None:
    check(program_steps, seed)


ok(driver.cuInit(0))
ok(driver.cuCtxCreate(None, 0, ok(driver.cuDeviceGet(0))))
for one in range(len(OPERATIONS)):  # each operation at least once
    check([("plain", one, [0, 0, 0, 0]), ("branch", one, [1, 1, 1, 0])], one)
for one in range(len(TOGETHER)):
    check([("together", one, [0, 0, 0, 0]), ("loop", 0, [0, 1, 0, 0])], one)
random_programs()
print("equal")
