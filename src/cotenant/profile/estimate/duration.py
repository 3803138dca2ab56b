"""Duration of a kernel on a GPU: a roofline with tile and wave quantisation, power and fixed times."""

from __future__ import annotations

import functools
import math
from typing import Final

import msgspec

from cotenant.profile.estimate.devices import SM_BYTES, Gpu
from cotenant.profile.estimate.kernels import KernelWork, Precision, waves
from cotenant.profile.estimate.operator import Family, Gemm
from cotenant.profile.estimate.parameters import DOUBT, ENERGY_GAIN, FITTED, DurationParameters
from cotenant.units.value import Value

_TILES: Final = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (32, 32))
_SPLITS: Final = (1, 2, 4, 8, 16, 32)
_BEST_TILE: Final = 1 / 128 + 1 / 128
_LEAST_DEPTH: Final = 128
_STEP: Final = 32
_NS: Final = 1e9
_WINOGRAD_AREA: Final = 9
_WINOGRAD_CHANNELS: Final = 16
_ROWS: Final = (Family.NORMALIZATION, Family.REDUCTION, Family.POOLING)
_MOVES: Final = (Family.MOVE, Family.LOOKUP, Family.UNSUPPORTED)
_SORT_PASSES: Final = 12.0


class Correction(Value, frozen=True, kw_only=True):
    """Factors that measurements of a device gave: its times are these multiples of the estimates."""

    arithmetic: float = 1.0
    memory: float = 1.0
    host: float = 1.0
    measurements: int = 0


class KernelTime(Value, frozen=True):
    """A kernel with its duration and the grid that a library would choose."""

    work: KernelWork
    device_ns: float
    blocks: int
    threads: int
    registers: int
    shared_bytes: int
    memory_bound: bool
    doubt: float
    """Standard deviation of the logarithm of its duration."""


class _Tile(msgspec.Struct, frozen=True):
    compute_ns: float
    blocks: int
    rows: int
    columns: int
    splits: int


def kernel_time(
    work: KernelWork, gpu: Gpu, parameters: DurationParameters = FITTED, correction: Correction | None = None
) -> KernelTime:
    """Return the duration of one kernel alone on the GPU."""
    factor = correction or _NO_CORRECTION
    memory_ns = _memory_ns(work, gpu, parameters) * factor.memory
    doubt = DOUBT[work.family]
    fixed_ns = parameters.kernel_ns
    if work.gemm is None or work.family is Family.DEPTHWISE:
        compute_ns = work.flops / (0.25 * gpu.fp32) * _NS * factor.arithmetic
        total_ns = fixed_ns + max(compute_ns, memory_ns)
        return KernelTime(
            *(work, total_ns, work.blocks, work.threads, work.registers, work.shared_bytes),
            memory_ns >= compute_ns,
            doubt,
        )
    tile = best_tile(work.gemm, gpu, work.precision, parameters)
    rate = _relative_rate(work, gpu, parameters)
    compute_ns = tile.compute_ns / rate * factor.arithmetic
    partial_bytes = 8.0 * work.gemm.m * work.gemm.n * work.gemm.batch * (tile.splits if tile.splits > 1 else 0)
    # Results are written after the inner loop, so that this time adds to it; loads overlap with it.
    written = work.gemm.m * work.gemm.n * work.gemm.batch * work.precision.item_bytes
    write_ns = (written + partial_bytes) / (gpu.bytes_per_s * parameters.bandwidth) * _NS * factor.memory
    memory_ns = max(memory_ns - write_ns, 0.0)
    name = f"{work.function}_{tile.rows}x{tile.columns}"
    threads = 256 if tile.rows * tile.columns >= 64 * 64 else 128
    registers = min(max(tile.rows * tile.columns // threads + 64, 64), 255)
    shared_bytes = min((tile.rows + tile.columns) * _STEP * work.precision.item_bytes, 48 * 1024)
    return KernelTime(
        msgspec.structs.replace(work, function=name),
        fixed_ns + max(compute_ns, memory_ns) + write_ns,
        tile.blocks,
        threads,
        registers,
        shared_bytes,
        memory_ns + write_ns >= compute_ns,
        doubt,
    )


def peak_flops(gpu: Gpu, precision: Precision, parameters: DurationParameters) -> float:
    """Return the sustained rate of large products: by the units that exist, and by the power of the board."""
    rates = {
        Precision.FP32: gpu.fp32,
        Precision.TF32: gpu.tf32,
        Precision.FP16: gpu.fp16,
        Precision.BF16: gpu.fp16 if gpu.tf32 else gpu.fp32,
        Precision.INT8: gpu.int8,
        Precision.FP16_SHORT: gpu.fp16_short or gpu.fp16,
    }
    peak = rates[precision]
    if not peak:  # without the unit, the next wider one computes
        peak = gpu.fp16 if precision is Precision.INT8 and gpu.fp16 else gpu.fp32
    share = parameters.tensor if peak > 1.5 * gpu.fp32 else parameters.matmul
    gain = ENERGY_GAIN[precision.value] if peak > 1.5 * gpu.fp32 else 1.0
    return min(peak * share, gpu.watts * parameters.flops_per_watt(gpu.generation) * gain)


@functools.lru_cache(maxsize=65536)
def best_tile(gemm: Gemm, gpu: Gpu, precision: Precision, parameters: DurationParameters) -> _Tile:
    """Return the fastest tiling of a product: libraries measure or predict the same."""
    per_sm = peak_flops(gpu, precision, parameters) / gpu.sms
    best: _Tile | None = None
    for rows, columns in _TILES:
        if (rows > 2 * gemm.m and rows > 32) or (columns > 2 * gemm.n and columns > 32):
            continue
        quality = 1 / (1 + parameters.tile * max(1 / rows + 1 / columns - _BEST_TILE, 0.0))
        grid = math.ceil(gemm.m / rows) * math.ceil(gemm.n / columns) * gemm.batch
        for splits in _SPLITS:
            depth = math.ceil(gemm.k / splits)
            if splits > 1 and (depth < _LEAST_DEPTH or grid * splits > 4 * gpu.sms):
                break
            blocks = grid * splits
            work = 2.0 * rows * columns * (math.ceil(depth / _STEP) * _STEP + parameters.depth)
            compute_ns = waves(blocks, gpu.sms) * work / (per_sm * quality) * _NS
            if best is None or compute_ns < best.compute_ns:
                best = _Tile(compute_ns, blocks, rows, columns, splits)
    assert best is not None  # the smallest tile always fits
    return best


def _relative_rate(work: KernelWork, gpu: Gpu, parameters: DurationParameters) -> float:
    """Return the rate of a kernel relative to a plain product of the same size."""
    assert work.gemm is not None
    if work.family is not Family.CONVOLUTION:
        return 1.0
    on_cores = peak_flops(gpu, work.precision, parameters) <= gpu.fp32
    rate = parameters.convolution if on_cores else parameters.tensor_convolution
    wide = min(work.gemm.n, work.gemm.k // max(work.reduction_area, 1)) >= _WINOGRAD_CHANNELS
    if on_cores and work.reduction_area == _WINOGRAD_AREA and work.stride == 1 and work.groups == 1 and wide:
        rate *= parameters.winograd
    return rate * (parameters.grouped if work.groups > 1 else 1.0)


def _memory_ns(work: KernelWork, gpu: Gpu, parameters: DurationParameters) -> float:
    share = parameters.bandwidth
    moved = work.moved_bytes
    if work.family is Family.DEPTHWISE:
        share = parameters.depthwise
    elif work.family in _ROWS:
        share = parameters.rows
    elif work.family in _MOVES:
        share = parameters.moves
    elif work.family is Family.SORT:
        moved *= _SORT_PASSES
    used = min(work.blocks * SM_BYTES / gpu.sms, 1.0) if work.gemm is None else 1.0
    return moved / (gpu.bytes_per_s * share * used) * _NS


_NO_CORRECTION: Final = Correction()
