"""CUDA C++ as programs write it, compiled to PTX by NVRTC through cuda-core, on a software GPU; compared with numpy.

The include directories of CUDA's headers (runtime, CCCL and the compiler's) are the arguments.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

INCLUDES = sys.argv[1:]
device = Device()
device.set_current()
stream = device.create_stream()
rng = np.random.default_rng(1)
cases: list[Callable[[], None]] = []


def case(function: Callable[[], None]) -> Callable[[], None]:
    cases.append(function)
    return function


def ok(result: Any) -> Any:
    assert result[0] == 0, result[0]
    return result[1] if len(result) > 1 else None


def run(
    source: str, grid: Any, block: int, *arguments: Any, name: str = "k", shared: int = 0, **launch_options: Any
) -> Any:
    """Compile and launch a kernel; return the contents of its arrays afterwards."""
    options = ProgramOptions(arch=f"compute_{device.compute_capability.major}0", include_path=INCLUDES, std="c++17")
    kernel = Program(source, "c++", options).compile("ptx", name_expressions=(name,)).get_kernel(name)
    arrays = [np.array(one, order="C") for one in arguments if isinstance(one, np.ndarray)]
    pointers = []
    for array in arrays:
        pointers.append(ok(driver.cuMemAlloc(array.nbytes)))
        ok(driver.cuMemcpyHtoD(pointers[-1], array.ctypes.data, array.nbytes))
    left = iter(pointers)
    values = [int(next(left)) if isinstance(one, np.ndarray) else one for one in arguments]
    launch(stream, LaunchConfig(grid=grid, block=block, shmem_size=shared, **launch_options), kernel, *values)
    stream.sync()
    for array, pointer in zip(arrays, pointers, strict=True):
        ok(driver.cuMemcpyDtoH(array.ctypes.data, pointer, array.nbytes))
        ok(driver.cuMemFree(pointer))
    return arrays


@case
def templates_and_lambdas() -> None:
    source = """
template <class T, class F> __device__ T apply(T x, F f) { return f(x); }
template <class T> __global__ void k(T a, const T *x, T *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = apply(x[i], [=](T v) { return v > T(0) ? a * v : v; }) + y[i];
}"""
    x, y = rng.normal(size=(2, 1000)).astype(np.float32)
    out = run(source, 4, 256, np.float32(2), x, y, np.int32(1000), name="k<float>")[1]
    assert np.allclose(out, np.where(x > 0, 2 * x, x) + y)


@case
def structures_recursion_and_virtual_calls() -> None:
    source = """
struct Base { virtual __device__ int f(int) const = 0; };
struct One : Base { __device__ int f(int x) const override { return x + 1; } };
struct Two : Base { int q; __device__ Two(int q) : q(q) {} __device__ int f(int x) const override { return x * q; } };
__device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
__constant__ int table[4] = {3, 1, 4, 1};
__global__ void k(int *o) {
  int i = threadIdx.x; One one; Two two(3); const Base *b = i & 1 ? (const Base *)&one : (const Base *)&two;
  o[i] = b->f(i) + fib(i % 10) * 100 + table[i & 3] * 10000;
}"""
    fib = [0, 1, 1, 2, 3, 5, 8, 13, 21, 34]
    out = run(source, 1, 32, np.zeros(32, np.int32))[0]
    expected = [(i + 1 if i & 1 else 3 * i) + fib[i % 10] * 100 + [3, 1, 4, 1][i & 3] * 10000 for i in range(32)]
    assert out.tolist() == expected


@case
def cooperative_groups() -> None:
    source = """
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;
__global__ void k(const int *a, int *sums, int *scans, int *ranks) {
  auto block = cg::this_thread_block(); auto tile = cg::tiled_partition<16>(block); int i = block.thread_rank();
  sums[i] = cg::reduce(tile, a[i], cg::plus<int>()); scans[i] = cg::inclusive_scan(tile, a[i]); ranks[i] = -1;
  if (a[i] & 1) ranks[i] = cg::coalesced_threads().thread_rank();
}"""
    a = rng.integers(0, 100, 128).astype(np.int32)
    _, sums, scans, ranks = run(source, 1, 128, a, *np.zeros((3, 128), np.int32))
    tiles = a.reshape(8, 16)
    assert (sums == np.repeat(tiles.sum(1), 16)).all()
    assert (scans == tiles.cumsum(1).reshape(-1)).all()
    odd = a.reshape(4, 32) & 1
    assert (ranks == np.where(odd, odd.cumsum(1) - 1, -1).reshape(-1)).all()


@case
def grid_synchronization() -> None:
    source = """
#include <cooperative_groups.h>
__global__ void k(int *o) {
  auto grid = cooperative_groups::this_grid(); int i = grid.thread_rank();
  o[i] = i; grid.sync(); int v = o[(i + 77) % grid.size()]; grid.sync(); o[i] = v;
}"""
    out = run(source, 4, 128, np.zeros(512, np.int32), is_cooperative=True)[0]
    assert (out == (np.arange(512) + 77) % 512).all()


@case
def cub_in_a_block() -> None:
    source = """
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
__global__ void k(const int *a, int *sum, int *scan, int *sorted) {
  typedef cub::BlockReduce<int, 128> Reduce; typedef cub::BlockScan<int, 128> Scan;
  typedef cub::BlockRadixSort<int, 128, 2> Sort;
  __shared__ union { Reduce::TempStorage r; Scan::TempStorage s; Sort::TempStorage o; } kept;
  int t = threadIdx.x, total = Reduce(kept.r).Sum(a[t]), before;
  if (t == 0) *sum = total;
  __syncthreads(); Scan(kept.s).ExclusiveSum(a[t], before); scan[t] = before;
  __syncthreads(); int keys[2] = {a[t] - 50, a[t] * 3}; Sort(kept.o).Sort(keys); sorted[2 * t] = keys[0];
  sorted[2 * t + 1] = keys[1];
}"""
    a = rng.integers(0, 100, 128).astype(np.int32)
    _, total, scan, ordered = run(source, 1, 128, a, np.zeros(1, np.int32), np.zeros_like(a), np.zeros(256, np.int32))
    assert total[0] == a.sum()
    assert (scan == a.cumsum() - a).all()
    assert (ordered == np.sort(np.concatenate([a - 50, a * 3]))).all()


@case
def tensor_cores() -> None:
    source = """
#include <mma.h>
using namespace nvcuda;
__global__ void k(const half *a, const half *b, float *d, int n) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
  wmma::fill_fragment(fc, 0.f);
  for (int x = 0; x < n; x += 16) {
    wmma::load_matrix_sync(fa, a + blockIdx.x * 16 * n + x, n); wmma::load_matrix_sync(fb, b + x, n);
    wmma::mma_sync(fc, fa, fb, fc);
  }
  for (int i = 0; i < fc.num_elements; i++) fc.x[i] *= 2.f;
  wmma::store_matrix_sync(d + blockIdx.x * 256, fc, 16, wmma::mem_row_major);
}"""
    a, b = rng.normal(size=(32, 64)).astype(np.float16), rng.normal(size=(16, 64)).astype(np.float16)
    out = run(source, 2, 32, a, b, np.zeros((32, 16), np.float32), np.int32(64))[2]
    assert np.allclose(out, 2 * a.astype(np.float32) @ b.astype(np.float32).T, rtol=1e-3, atol=1e-3)


@case
def asynchronous_copies_and_barriers() -> None:
    source = """
#include <cooperative_groups.h>
#include <cuda/pipeline>
__global__ void k(const int *a, int *o) {
  auto g = cooperative_groups::this_thread_block(); __shared__ int kept[2][64];
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state; auto p = cuda::make_pipeline(g, &state);
  for (int j = 0; j < 4; j++) {
    p.producer_acquire(); cuda::memcpy_async(g, kept[j & 1], a + j * 64, sizeof(int) * 64, p); p.producer_commit();
    p.consumer_wait(); g.sync(); o[j * 64 + g.thread_rank()] = kept[j & 1][63 - g.thread_rank()] * 2; g.sync();
    p.consumer_release();
  }
}"""
    a = rng.integers(0, 99, (4, 64)).astype(np.int32)
    assert (run(source, 1, 64, a, np.zeros_like(a))[1] == a[:, ::-1] * 2).all()


@case
def atomics() -> None:
    source = """
#include <cuda_fp16.h>
#include <cuda/atomic>
__global__ void k(int *i, unsigned long long *l, float *f, double *d, __half2 *h) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(i, t); atomicMin(i + 1, -t); atomicMax(i + 2, t); atomicOr(i + 3, 1 << (t & 31)); atomicXor(i + 4, t);
  atomicInc((unsigned *)i + 5, 100u); atomicCAS(i + 6, 0, 9); atomicExch(i + 7, 5);
  atomicAdd(l, (unsigned long long)t << 20); atomicMax(l + 1, (unsigned long long)t << 33);
  atomicAdd(f, 0.5f); atomicAdd(d, 0.25); atomicAdd(h, __floats2half2_rn(1.f, .5f));
  cuda::atomic_ref<int, cuda::thread_scope_device>(i[8]).fetch_add(2, cuda::std::memory_order_relaxed);
}"""
    zeros = np.zeros(9, np.int32), np.zeros(2, np.uint64), np.zeros(1, np.float32), np.zeros(1), np.zeros(2, np.float16)
    i, wide, f, d, h = run(source, 2, 128, *zeros)
    t = np.arange(256)
    assert i.tolist() == [t.sum(), -255, 255, -1, np.bitwise_xor.reduce(t), 256 % 101, 9, 5, 512]
    assert wide.tolist() == [int(t.sum()) << 20, 255 << 33]
    assert (f[0], d[0], h.tolist()) == (128, 64, [256, 128])


@case
def small_floats() -> None:
    source = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
__global__ void k(const __half2 *a, const __nv_bfloat162 *b, __half2 *c, __nv_bfloat162 *d, unsigned char *e) {
  int i = threadIdx.x; c[2 * i] = __hfma2(a[i], a[i], a[i]); c[2 * i + 1] = __hgt2(a[i], __float2half2_rn(.25f));
  d[i] = __hmul2(b[i], b[i]); e[i] = __nv_fp8_e4m3(__low2float(a[i])).__x;
}"""
    a, b = rng.normal(size=(32, 2)).astype(np.float16), rng.normal(size=(32, 2)).astype(ml_dtypes.bfloat16)
    arrays = (
        a,
        b.view(np.uint16),
        np.zeros((32, 2, 2), np.float16),
        np.zeros((32, 2), np.uint16),
        np.zeros(32, np.uint8),
    )
    _, _, c, d, e = run(source, 1, 32, *arrays)
    wide = a.astype(np.float64)
    assert (c[:, 0] == (wide * wide + wide).astype(np.float16)).all()
    assert (c[:, 1] == (a > 0.25)).all()
    assert (d == (b.astype(np.float32) ** 2).astype(ml_dtypes.bfloat16).view(np.uint16)).all()
    assert (e == a[:, 0].astype(ml_dtypes.float8_e4m3fn).view(np.uint8)).all()


@case
def mathematical_functions() -> None:
    names = [
        "sin",
        "cos",
        "tan",
        "exp",
        "log",
        "sqrt",
        "tanh",
        "erf",
        "cbrt",
        "atan",
        "log1p",
        "expm1",
        "tgamma",
        "rint",
    ]
    stores = "".join(
        f"o[{k} * 64 + i] = {name}(x[i]); f[{k} * 64 + i] = {name}f((float)x[i]);" for k, name in enumerate(names)
    )
    x, out = np.linspace(0.05, 3, 64), np.zeros((len(names), 64))
    _, doubles, floats = run(
        f"__global__ void k(const double *x, double *o, float *f) {{ int i = threadIdx.x; {stores} }}",
        1, 64, x, out, out.astype(np.float32),
    )  # fmt: skip
    exact = {"erf": np.vectorize(math.erf), "tgamma": np.vectorize(math.gamma), "atan": np.arctan}
    for k, name in enumerate(names):
        wanted = exact.get(name, getattr(np, name, None))(x)
        assert np.allclose(doubles[k], wanted, rtol=1e-12), name
        assert np.allclose(floats[k], wanted, rtol=1e-5, atol=1e-6), name


@case
def inline_assembly_and_vectors() -> None:
    source = """
extern __shared__ float4 kept[];
__global__ void k(const float4 *a, float4 *o, const int *b, int *c) {
  int i = threadIdx.x, r; float4 v = a[i]; v.x += v.w; kept[i] = v; __syncthreads(); o[i] = kept[blockDim.x - 1 - i];
  asm("{ .reg .pred p; setp.gt.s32 p, %1, 5; selp.s32 %0, %1, 7, p; lop3.b32 %0, %0, %1, 3, 0x96; }"
      : "=r"(r) : "r"(b[i]));
  c[i] = r + __popc(b[i]) + __byte_perm(b[i], i, 0x3175);
}"""
    a, b = rng.normal(size=(64, 4)).astype(np.float32), rng.integers(0, 1 << 20, 64).astype(np.int32)
    _, o, _, c = run(source, 1, 64, a, np.zeros_like(a), b, np.zeros_like(b), shared=1024)
    a[:, 0] += a[:, 3]
    assert (o == a[::-1]).all()
    i = np.arange(64, dtype=np.uint64)
    both = i << 32 | b.astype(np.uint64)
    permuted = sum((both >> np.uint64(8 * n) & np.uint64(255)) << np.uint64(8 * k) for k, n in enumerate((5, 7, 1, 3)))
    ones = np.array([int(one).bit_count() for one in b])
    assert (c == ((np.where(b > 5, b, 7) ^ b ^ 3) + ones + permuted.astype(np.int64)).astype(np.int32)).all()


@case
def divergence() -> None:
    source = """
__global__ void k(int *o) {
  int i = threadIdx.x, n = i, c = 0;
  while (n > 1) { n = n & 1 ? 3 * n + 1 : n / 2; if (++c > 500) break; }
  switch (i % 5) {
    case 0: c += 1; break;
    case 1: c *= 2;
    case 2: c -= 3; break;
    default: for (int j = 0; j < i; j++) { if (j == 7) continue; if (j > 20) goto end; c += j; }
  }
end:
  o[i] = c;
}"""

    def one(i: int) -> int:
        n, c = i, 0
        while n > 1:
            n, c = (3 * n + 1 if n & 1 else n // 2), c + 1
        if i % 5 == 0:
            return c + 1
        if i % 5 < 3:
            return (2 * c if i % 5 == 1 else c) - 3
        return c + sum(j for j in range(min(i, 21)) if j != 7)

    assert run(source, 1, 128, np.zeros(128, np.int32))[0].tolist() == [one(i) for i in range(128)]


for one in cases:
    one()
    print(f"{one.__name__}: as numpy", flush=True)
