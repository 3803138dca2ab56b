"""Kernels of Triton, compiled to PTX for one compute capability: their results, whole and in parts, against numpy.

The argument is the compute capability, such as 80. Triton itself only compiles: its launcher needs NVIDIA's assembler.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import triton
import triton.language as tl
from cuda.bindings import driver
from cuda_helpers import Part, ok
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from cotenant.hook import parts

TARGET = int(sys.argv[1])
rng = np.random.default_rng(1)
ok(driver.cuInit(0))
ok(driver.cuCtxCreate(None, 0, ok(driver.cuDeviceGet(0))))
TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "fp8e4nv", "int32": "i32"}


@triton.jit
def add(x, y, out, n, size: tl.constexpr):
    at = tl.program_id(0) * size + tl.arange(0, size)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def softmax(x, out, n, size: tl.constexpr):
    row, at = tl.program_id(0) * n, tl.arange(0, size)
    v = tl.load(x + row + at, mask=at < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(out + row + at, e / tl.sum(e, 0), mask=at < n)


@triton.jit
def normalize(x, weights, out, n, size: tl.constexpr):
    row, at = tl.program_id(0) * n, tl.arange(0, size)
    v = tl.load(x + row + at, mask=at < n, other=0.0)
    d = tl.where(at < n, v - tl.sum(v, 0) / n, 0.0)
    scaled = d * tl.rsqrt(tl.sum(d * d, 0) / n + 1e-5) * tl.load(weights + at, mask=at < n)
    tl.store(out + row + at, scaled, mask=at < n)


@triton.jit
def multiply(a, b, out, n, k, tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr):
    rows = tl.program_id(0) * tile_m + tl.arange(0, tile_m)
    columns = tl.program_id(1) * tile_n + tl.arange(0, tile_n)
    total = tl.zeros((tile_m, tile_n), tl.float32)
    for start in range(0, k, tile_k):
        depth = start + tl.arange(0, tile_k)
        x = tl.load(a + rows[:, None] * k + depth[None, :])
        y = tl.load(b + depth[:, None] * n + columns[None, :])
        total = tl.dot(x, y, total)
    tl.store(out + rows[:, None] * n + columns[None, :], total)


@triton.jit
def attend(q, k, v, out, n, width: tl.constexpr, tile_m: tl.constexpr, tile_n: tl.constexpr):
    rows, depth = tl.program_id(0) * tile_m + tl.arange(0, tile_m), tl.arange(0, width)
    x = tl.load(q + rows[:, None] * width + depth[None, :])
    largest, weights = tl.full((tile_m,), -float("inf"), tl.float32), tl.zeros((tile_m,), tl.float32)
    total = tl.zeros((tile_m, width), tl.float32)
    for start in range(0, n, tile_n):
        at = start + tl.arange(0, tile_n)
        scores = tl.dot(x, tl.trans(tl.load(k + at[:, None] * width + depth[None, :]))) * 0.125
        larger = tl.maximum(largest, tl.max(scores, 1))
        p, scale = tl.exp(scores - larger[:, None]), tl.exp(largest - larger)
        weights = weights * scale + tl.sum(p, 1)
        total = tl.dot(p.to(tl.float16), tl.load(v + at[:, None] * width + depth[None, :]), total * scale[:, None])
        largest = larger
    tl.store(out + rows[:, None] * width + depth[None, :], total / weights[:, None])


@triton.jit
def accumulate(x, out, size: tl.constexpr):
    at = tl.arange(0, size)
    tl.store(out + at, tl.cumsum(tl.load(x + at), 0))


@triton.jit
def count(x, out, n, size: tl.constexpr, bins: tl.constexpr):
    at = tl.program_id(0) * size + tl.arange(0, size)
    tl.atomic_add(out + tl.arange(0, bins), tl.histogram(tl.load(x + at, mask=at < n, other=0), bins))


@triton.jit
def order(x, out, largest, size: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, size)
    v = tl.load(x + row * size + at)
    tl.store(out + row * size + at, tl.sort(v))
    tl.store(largest + row, tl.argmax(v, 0))


@triton.jit
def functions(x, out, n, size: tl.constexpr):
    at = tl.program_id(0) * size + tl.arange(0, size)
    v = tl.load(x + at, mask=at < n, other=0.0)
    total = tl.sin(v) + tl.cos(v) + tl.log(tl.abs(v) + 1) + tl.exp2(v * 0.1) + tl.sqrt(tl.abs(v)) + tl.erf(v)
    tl.store(out + at, total + tl.floor(v) + tl.ceil(v), mask=at < n)


class Compiled:
    """A kernel, loaded with its variant, and memory for its arrays."""

    def __init__(self, function: Any, arrays: list[Any], numbers: list[int], constants: dict[str, int]) -> None:
        types = (
            ["*" + TYPES[str(one.dtype)] for one in arrays] + ["i32"] * len(numbers) + ["constexpr"] * len(constants)
        )
        source = ASTSource(
            fn=function,
            signature=dict(zip(function.arg_names, types, strict=True)),
            constexprs={(function.arg_names.index(name),): value for name, value in constants.items()},
        )
        kernel = triton.compile(source, target=GPUTarget("cuda", TARGET, 32))
        text, (found,) = parts.rewrite(kernel.asm["ptx"].encode())
        assert text is not None, found.reason
        assert found.variant is not None
        module = ok(driver.cuModuleLoadData(text))
        self.plain = ok(driver.cuModuleGetFunction(module, found.name))
        self.variant = ok(driver.cuModuleGetFunction(module, found.variant.encode()))
        self.threads, self.shared = 32 * kernel.metadata.num_warps, kernel.metadata.shared
        for one in (self.plain, self.variant):
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            ok(driver.cuFuncSetAttribute(one, attribute, self.shared))
        self.arrays, self.numbers = arrays, numbers
        self.pointers = [ok(driver.cuMemAlloc(one.nbytes)) for one in arrays]

    def launch(self, grid: tuple[int, ...], part: bytes = b"", blocks: int = 0) -> None:
        values = [*map(int, self.pointers), *self.numbers, 0, 0]  # Triton's own memory, which these kernels do not use
        types: list[Any] = [ctypes.c_uint64] * len(self.pointers) + [ctypes.c_int] * len(self.numbers)
        types += [ctypes.c_uint64] * 2
        if part:
            values, types = [*values, Part.from_buffer_copy(part)], [*types, None]
        function, shape = (self.variant, (blocks, 1, 1)) if part else (self.plain, grid)
        given = tuple(values), tuple(types)
        ok(driver.cuLaunchKernel(function, *shape, self.threads, 1, 1, self.shared, 0, given, 0))

    def run(self, grid: tuple[int, int, int], size: int) -> list[Any]:
        """Return all arrays after a launch; `size` 0: as a whole, otherwise in parts of so many blocks."""
        total = math.prod(grid)
        for array, pointer in zip(self.arrays, self.pointers, strict=True):
            ok(driver.cuMemcpyHtoD(pointer, array.ctypes.data, array.nbytes))
        for first in range(0, total, size or total):
            part = parts.part_parameter(grid, first) if size else b""
            self.launch(grid, part, min(size, total - first))
        ok(driver.cuCtxSynchronize())
        results = [np.empty_like(one) for one in self.arrays]
        for array, pointer in zip(results, self.pointers, strict=True):
            ok(driver.cuMemcpyDtoH(array.ctypes.data, pointer, array.nbytes))
        return results


def case(
    function: Any,
    grid: tuple[int, int, int],
    arrays: list[Any],
    numbers: list[int],
    constants: dict[str, int],
    is_right: Callable[[list[Any]], bool],
    title: str = "",
) -> None:
    compiled = Compiled(function, arrays, numbers, constants)
    whole = compiled.run(grid, 0)
    assert is_right(whole), f"{function.__name__} {title} is wrong"
    for size in range(1, math.prod(grid) + 1):
        in_parts = compiled.run(grid, size)
        assert all(x.tobytes() == y.tobytes() for x, y in zip(whole, in_parts, strict=True)), (function.__name__, size)
    print(f"{function.__name__}{title and ' of '}{title}: as numpy, and the same in parts", flush=True)


def numbers(*shape: int) -> Any:
    return rng.normal(size=shape).astype(np.float32)


def expected_attention(q: Any, k: Any, v: Any) -> Any:
    scores = q.astype(np.float32) @ k.astype(np.float32).T * 0.125
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True) @ v.astype(np.float32)


def products() -> None:
    kinds = (
        [np.float16, np.float32] + [ml_dtypes.bfloat16] * (TARGET >= 80) + [ml_dtypes.float8_e4m3fn] * (TARGET >= 89)
    )
    for kind in kinds:
        a, b = (numbers(128, 96) / 2).astype(kind), (numbers(96, 128) / 2).astype(kind)
        sums = a.astype(np.float32) @ b.astype(np.float32)
        error = 0.02 if kind == np.float32 else 1e-3  # floats are rounded to tf32
        case(
            multiply,
            (2, 2, 1),
            [a, b, np.zeros((128, 128), np.float32)],
            [128, 96],
            {"tile_m": 64, "tile_n": 64, "tile_k": 32},
            lambda out, sums=sums, error=error: np.allclose(out[2], sums, atol=error),
            str(a.dtype),
        )
    q, k, v = (numbers(128, 64).astype(np.float16) for _ in range(3))
    sizes = {"width": 64, "tile_m": 64, "tile_n": 32}
    expected = expected_attention(q, k, v)
    arrays = [q, k, v, np.zeros((128, 64), np.float32)]
    case(attend, (2, 1, 1), arrays, [128], sizes, lambda out: np.allclose(out[3], expected, atol=5e-3))


def others() -> None:
    x, y, rows, weights = numbers(3000), numbers(3000), numbers(9, 200), numbers(200)
    case(add, (3, 1, 1), [x, y, np.zeros_like(x)], [3000], {"size": 1024}, lambda out: (out[2] == x + y).all())
    e = np.exp(rows - rows.max(1, keepdims=True))
    expected = e / e.sum(1, keepdims=True)
    arrays = [rows, np.zeros_like(rows)]
    case(softmax, (9, 1, 1), arrays, [200], {"size": 256}, lambda out: np.allclose(out[1], expected, atol=1e-6))
    centred = rows - rows.mean(1, keepdims=True)
    scaled = centred / np.sqrt(rows.var(1, keepdims=True) + 1e-5) * weights
    arrays = [rows, weights, np.zeros_like(rows)]
    case(normalize, (9, 1, 1), arrays, [200], {"size": 256}, lambda out: np.allclose(out[2], scaled, atol=1e-5))
    few = numbers(512)
    arrays = [few, np.zeros_like(few)]
    case(accumulate, (1, 1, 1), arrays, [], {"size": 512}, lambda out: np.allclose(out[1], few.cumsum(), atol=1e-4))
    bins = rng.integers(0, 64, 2048).astype(np.int32)
    arrays, counts = [bins, np.zeros(64, np.int32)], np.bincount(bins, minlength=64)
    case(count, (4, 1, 1), arrays, [2048], {"size": 512, "bins": 64}, lambda out: (out[1] == counts).all())
    unsorted = numbers(5, 128)
    arrays = [unsorted, np.zeros_like(unsorted), np.zeros(5, np.int32)]
    case(
        order,
        (5, 1, 1),
        arrays,
        [],
        {"size": 128},
        lambda out: (out[1] == np.sort(unsorted, 1)).all() and (out[2] == unsorted.argmax(1)).all(),
    )
    v = x.astype(float)
    exact = (
        np.sin(v) + np.cos(v) + np.log(np.abs(v) + 1) + 2 ** (v * 0.1) + np.sqrt(np.abs(v)) + np.floor(v) + np.ceil(v)
    )
    exact += [math.erf(one) for one in v]
    arrays = [x, np.zeros_like(x)]
    case(functions, (12, 1, 1), arrays, [3000], {"size": 256}, lambda out: np.allclose(out[1], exact, atol=1e-4))


others()
products()
