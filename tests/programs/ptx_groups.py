"""Products of tiles by groups of four warps (wgmma), whose matrices are in shared memory in every arrangement."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from cuda.bindings import driver
from cuda_helpers import ok
from ptx_instructions import run

ROWS, SPACE = 64, 16384
"""Rows of the first matrix, and bytes of shared memory for each matrix."""


def image(matrix: Any, width: int, *, is_turned: bool) -> tuple[bytes, int]:
    """Arrange rows (or, turned, columns) in tiles of 8 by `width` bytes; return the descriptor too."""
    lines = np.ascontiguousarray(matrix.T if is_turned else matrix).view(np.uint8)
    count, length = lines.shape
    if width == 16 or is_turned:  # tiles behind each other, first along the slow direction
        tiles = lines.reshape(count // 8, 8, length // width, width).transpose(2, 0, 1, 3)
        near, far = 8 * width, count * width
        leading, stride = (far, near) if width > 16 or not is_turned else (near, far)
    else:  # a tile may be longer than the matrix
        tiles = np.zeros((1, count // 8, 8, width), np.uint8)
        tiles[0, :, :, :length] = lines.reshape(count // 8, 8, length)
        leading, stride = 16, 8 * width
    exchanged = np.empty_like(tiles)
    units = width // 16
    for line in range(8):
        other = {16: 0, 32: line // 4, 64: line // 2, 128: line}[width]
        for unit in range(units):
            to = unit ^ other
            exchanged[..., line, 16 * to : 16 * to + 16] = tiles[..., line, 16 * unit : 16 * unit + 16]
    mode = {16: 0, 128: 1, 64: 2, 32: 3}[width]
    return exchanged.tobytes(), leading >> 4 << 16 | stride >> 4 << 32 | mode << 62


def multiply(a: Any, b: Any, old: Any, kinds: str, words: str, widths: tuple[int, int], **options: Any) -> Any:
    """Return what one instruction makes of `old`; `words` are its last operands."""
    columns, depth = b.shape[0], a.shape[1]
    is_half, from_registers = old.dtype == np.float16, options.get("from_registers", False)
    registers = columns // (4 if is_half else 2)
    first, a_descriptor = image(a, widths[0], is_turned=options.get("turned_a", False))
    second, b_descriptor = image(b, widths[1], is_turned=options.get("turned_b", False))
    assert max(len(first), len(second)) <= SPACE
    memory = np.zeros(2 * SPACE // 4 + 128 * (registers + 4), np.uint32)
    memory[: len(first) // 4], memory[SPACE // 4 : (SPACE + len(second)) // 4] = (
        np.frombuffer(x, np.uint32) for x in (first, second)
    )
    threads = memory[2 * SPACE // 4 :].reshape(registers + 4, 128)
    per, of_a = (2 if is_half else 1), 4 // a.dtype.itemsize
    for t in range(128):
        row = t // 32 * 16 + t % 32 // 4
        for r in range(registers):
            e = r * per
            place = old[row + 8 * (e // 2 % 2), e // 4 * 8 + t % 4 * 2 + e % 2 :][:per]
            threads[r, t] = np.ascontiguousarray(place).view(np.uint32)[0]
        for r in range(4):
            start = t % 4 * of_a + r // 2 * 4 * of_a
            threads[registers + r, t] = np.ascontiguousarray(a[row + 8 * (r % 2), start : start + of_a]).view(
                np.uint32
            )[0]
    names = [f"%a{r}" for r in range(registers + 4)]
    source = f"{{{', '.join(names[registers:])}}}" if from_registers else "%d6"
    at = 2 * SPACE
    text = f"""
.shared .align 1024 .b8 tiles[{2 * SPACE}];
.visible .entry k(.param .u64 a) {{
  .reg .b64 %d<12>; .reg .b32 %r<9>, %a<{registers + 4}>; .reg .pred %p<4>;
  ld.param.u64 %d1, [a]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; add.u64 %d3, %d1, %d2; mov.u32 %r2, %r1;
  mov.u32 %r7, tiles;
COPY: mul.wide.u32 %d4, %r2, 4; add.u64 %d5, %d1, %d4; ld.global.u32 %r3, [%d5]; shl.b32 %r4, %r2, 2;
  add.u32 %r4, %r4, %r7; st.shared.u32 [%r4], %r3; add.u32 %r2, %r2, 128;
  setp.lt.u32 %p1, %r2, {at // 4}; @%p1 bra COPY;
  {" ".join(f"ld.global.u32 {name}, [%d3+{at + 512 * k}];" for k, name in enumerate(names))} bar.sync 0;
  shr.u32 %r5, %r7, 4; cvt.u64.u32 %d8, %r5; or.b64 %d6, %d8, {a_descriptor}; add.u32 %r6, %r5, {SPACE // 16};
  cvt.u64.u32 %d9, %r6; or.b64 %d7, %d9, {b_descriptor};
  setp.{"ne" if options.get("is_added", True) else "eq"}.u32 %p2, 1, 0;
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.{kinds}
    {{{", ".join(names[:registers])}}}, {source}, %d7, %p2{words};
  wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
  {" ".join(f"st.global.u32 [%d3+{at + 512 * k}], {name};" for k, name in enumerate(names[:registers]))}
  ret; }}"""
    threads = run(text, memory, 128)[2 * SPACE // 4 :].reshape(registers + 4, 128)
    out = np.empty_like(old)
    for t in range(128):
        row = t // 32 * 16 + t % 32 // 4
        for r in range(registers):
            e = r * per
            out[row + 8 * (e // 2 % 2), e // 4 * 8 + t % 4 * 2 + e % 2 :][:per] = (
                threads[r : r + 1, t].copy().view(old.dtype)
            )
    return out


def main() -> None:
    ok(driver.cuInit(0))
    ok(driver.cuCtxCreate(None, 0, ok(driver.cuDeviceGet(0))))
    rng = np.random.default_rng(17)

    def numbers(rows: int, depth: int, dtype: Any) -> Any:
        return rng.integers(-4, 5, (rows, depth)).astype(dtype)

    def check(
        dtype: Any, kind: str, depth: int, columns: int, total: Any, words: str, widths: Any, **options: Any
    ) -> None:
        a, b, old = numbers(ROWS, depth, dtype), numbers(columns, depth, dtype), numbers(ROWS, columns, total)
        name = {np.float32: "f32", np.float16: "f16", np.int32: "s32"}[total]
        sign = -1 if ", -1," in words else 1
        product = sign * (a.astype(np.float32) @ b.astype(np.float32).T) + (old if options.get("is_added", True) else 0)
        out = multiply(a, b, old, f"{name}.{kind}.{kind}", words, widths, **options)
        assert (out == product.astype(total)).all(), (kind, columns, words, widths, options)

    for width in (16, 32, 64, 128):
        for turned in (0, 1):
            options = {"turned_a": turned, "turned_b": 1 - turned}
            check(
                np.float16,
                "f16",
                16,
                64,
                np.float32,
                f", 1, 1, {turned}, {1 - turned}",
                (64 if turned else width, width),
                **options,
            )
            check(
                ml_dtypes.bfloat16,
                "bf16",
                16,
                128,
                np.float32,
                f", 1, -1, {turned}",
                (16, width),
                turned_b=turned,
                from_registers=True,
            )
        check(np.float32, "tf32", 8, 24, np.float32, ", 1, 1", (width, 128), is_added=width > 16)
        check(ml_dtypes.float8_e4m3fn, "e4m3", 32, 256, np.float32, ", 1, 1", (width, 32))
        check(np.int8, "s8", 32, 32, np.int32, "", (128, width))
        check(np.float16, "f16", 16, 8, np.float16, ", -1, 1, 0, 0", (width, 64))
        check(ml_dtypes.float8_e5m2, "e5m2", 32, 16, np.float16, ", 1, 1", (32, width), from_registers=True)
    large = np.full((ROWS, 32), 127, np.int8)
    old = np.full((ROWS, 8), 2**31 - 5, np.int32)
    limited = multiply(large, large[:8], old, "s32.s8.s8", "", (128, 128))
    assert (limited == (old.astype(np.int64) + 32 * 127 * 127).astype(np.int32)).all()
    limited = multiply(large, large[:8], old, "satfinite.s32.s8.s8", "", (128, 128))
    assert (limited == 2**31 - 1).all()
    print("computed")


if __name__ == "__main__":
    main()
