"""Published constants of GPUs.

Sources: NVIDIA's data sheets and architecture whitepapers of each board (Tesla P4, P100, V100, T4; A10, A30, A40, A100;
L4, L40; H100, H200; GeForce RTX 2080 Ti, 3080, 3090, 4090; TITAN RTX). Rates are dense peaks at the boost clock, with
accumulation in 32 bits where the data sheet distinguishes; 0: the unit does not exist. Nothing here is fitted.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from cotenant.errors import ConfigError
from cotenant.softgpu.sim.device import DeviceConfig, preset, preset_keys
from cotenant.units.value import Value

SM_BYTES: Final = 2.0
"""A single SM reaches this multiple of its equal part of the memory bandwidth."""
_T: Final = 1e12
_G: Final = 1e9
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30


class Gpu(Value, frozen=True, kw_only=True):
    """One board."""

    key: str
    name: str
    generation: str
    """Architecture: it decides which units exist, and how much energy an operation takes."""
    sms: int
    fp32: float
    """Operations per second of the ordinary cores; so are the following, of the tensor cores."""
    fp16: float = 0.0
    tf32: float = 0.0
    int8: float = 0.0
    bytes_per_s: float
    l2_bytes: int
    memory_bytes: int
    watts: float
    """Power limit of the board."""
    fp16_short: float = 0.0
    """The same for half precision with accumulation in 16 bits, which compiled engines may use; 0: as `fp16`."""
    preset: str = ""
    """The software GPU of this board; empty: there is none, and a similar one is changed to its size."""

    @property
    def has_tensor_cores(self) -> bool:
        """Return whether half precision runs on tensor cores."""
        return self.fp16 > 2.5 * self.fp32


def _gpu(key: str, name: str, generation: str, rates: tuple[float, ...], memory: tuple[float, ...], **more: Any) -> Gpu:
    """Return a board. Rates: SMs, TFLOP/s of fp32, fp16, tf32, int8. Memory: GB/s, L2 in MiB, GiB, watts."""
    sms, fp32, fp16, tf32, int8 = rates
    bandwidth, l2, size, watts = memory
    return Gpu(
        key=key,
        name=name,
        generation=generation,
        sms=round(sms),
        fp32=fp32 * _T,
        fp16=fp16 * _T,
        tf32=tf32 * _T,
        int8=int8 * _T,
        bytes_per_s=bandwidth * _G,
        l2_bytes=round(l2 * _MIB),
        memory_bytes=round(size * _GIB),
        watts=watts,
        **more,
    )


_TABLE: Final = (
    _gpu("p4", "Tesla P4", "pascal", (20, 5.5, 0, 0, 22), (192, 2, 8, 75)),
    _gpu("p100", "Tesla P100-PCIE-16GB", "pascal", (56, 9.3, 18.7, 0, 0), (732, 4, 16, 250)),
    _gpu("v100-pcie", "Tesla V100-PCIE-32GB", "volta", (80, 14, 112, 0, 0), (900, 6, 32, 250), preset="v100-32"),
    _gpu("v100", "Tesla V100-SXM2-16GB", "volta", (80, 15.7, 125, 0, 0), (900, 6, 16, 300), preset="v100-16"),
    _gpu("v100-32", "Tesla V100-SXM2-32GB", "volta", (80, 15.7, 125, 0, 0), (900, 6, 32, 300), preset="v100-32"),
    _gpu("t4", "Tesla T4", "turing", (40, 8.1, 65, 0, 130), (320, 4, 16, 70), preset="t4"),
    _gpu("rtx2080ti", "NVIDIA GeForce RTX 2080 Ti", "turing", (68, 13.4, 53.8, 0, 215), (616, 5.5, 11, 250),
         fp16_short=107.6 * _T),
    _gpu("titanrtx", "NVIDIA TITAN RTX", "turing", (72, 16.3, 130, 0, 261), (672, 6, 24, 280)),
    _gpu("a10", "NVIDIA A10", "ampere", (72, 31.2, 125, 62.5, 250), (600, 6, 24, 150)),
    _gpu("a30", "NVIDIA A30", "ampere", (56, 10.3, 165, 82, 330), (933, 24, 24, 165)),
    _gpu("a40", "NVIDIA A40", "ampere", (84, 37.4, 150, 74.8, 299), (696, 6, 48, 300)),
    _gpu("a100-pcie", "NVIDIA A100-PCIE-40GB", "ampere", (108, 19.5, 312, 156, 624), (1555, 40, 40, 250),
         preset="a100-40"),
    _gpu("a100", "NVIDIA A100-SXM4-40GB", "ampere", (108, 19.5, 312, 156, 624), (1555, 40, 40, 400), preset="a100-40"),
    _gpu("a100-80-pcie", "NVIDIA A100 80GB PCIe", "ampere", (108, 19.5, 312, 156, 624), (1935, 40, 80, 300),
         preset="a100-80"),
    _gpu("a100-80", "NVIDIA A100-SXM4-80GB", "ampere", (108, 19.5, 312, 156, 624), (2039, 40, 80, 400),
         preset="a100-80"),
    _gpu("rtx3080", "NVIDIA GeForce RTX 3080", "ampere", (68, 29.8, 59.5, 29.8, 238), (760, 5, 10, 320),
         fp16_short=119 * _T),
    _gpu("rtx3090", "NVIDIA GeForce RTX 3090", "ampere", (82, 35.6, 71, 35.6, 284), (936, 6, 24, 350),
         fp16_short=142 * _T),
    _gpu("l4", "NVIDIA L4", "ada", (58, 30.3, 121, 60, 242), (300, 48, 24, 72)),
    _gpu("l40", "NVIDIA L40", "ada", (142, 90.5, 181, 90.5, 362), (864, 96, 48, 300)),
    _gpu("rtx4090", "NVIDIA GeForce RTX 4090", "ada", (128, 82.6, 165, 82.6, 661), (1008, 72, 24, 450),
         fp16_short=330 * _T),
    _gpu("h100-pcie", "NVIDIA H100 PCIe", "hopper", (114, 51.2, 756, 378, 1513), (2000, 50, 80, 350), preset="h100"),
    _gpu("h100", "NVIDIA H100 80GB HBM3", "hopper", (132, 66.9, 989, 494, 1979), (3350, 50, 80, 700), preset="h100"),
    _gpu("h200", "NVIDIA H200", "hopper", (132, 66.9, 989, 494, 1979), (4800, 50, 141, 700)),
)  # fmt: skip
GPUS: Final[dict[str, Gpu]] = {gpu.key: gpu for gpu in _TABLE}
"""Every board by key."""
_ALIASES: Final = {"v100-16": "v100", "v100-pcie-32": "v100-pcie", "a100-40": "a100", "h100-sxm": "h100"}


def find_gpu(key: str, field: str = "--gpu") -> Gpu:
    """Return the board of this key or product name; raise `ConfigError` that lists all keys."""
    word = key.strip().lower()
    word = _ALIASES.get(word, word)
    if word in GPUS:
        return GPUS[word]
    plain = word.replace("_", " ").replace("-", " ")
    for gpu in _TABLE:
        if gpu.name.lower().replace("-", " ") == plain:
            return gpu
    raise ConfigError(field, key, f"choose one of {', '.join(GPUS)}")


def part_of(gpu: Gpu, sms: int) -> Gpu:
    """Return the part of a board that a tenant sees whose kernels may use this many SMs."""
    share = sms / gpu.sms
    return msgspec.structs.replace(
        gpu,
        sms=sms,
        fp32=gpu.fp32 * share,
        fp16=gpu.fp16 * share,
        tf32=gpu.tf32 * share,
        int8=gpu.int8 * share,
        fp16_short=gpu.fp16_short * share,
        bytes_per_s=gpu.bytes_per_s * min(1.0, SM_BYTES * share),
        watts=gpu.watts * min(1.0, 2 * share),
    )


def simulated_device(gpu: Gpu) -> DeviceConfig:
    """Return the device model's configuration of a board; without a preset, that of the nearest one at its size."""
    if gpu.preset in preset_keys():
        config = preset(gpu.preset)
    else:
        near = {"pascal": "v100-16", "volta": "v100-16", "turing": "t4", "hopper": "h100"}
        config = preset(near.get(gpu.generation, "a100-40"))
    rate = gpu.fp32 / max(math.prod((gpu.sms, 2, 64)), 1)
    return msgspec.structs.replace(
        config,
        name=gpu.name,
        key=gpu.key,
        sm_count=gpu.sms,
        memory_bytes=gpu.memory_bytes,
        memory_bytes_per_s=round(gpu.bytes_per_s),
        l2_bytes=gpu.l2_bytes,
        clock_khz=config.clock_khz if gpu.preset else round(rate / 1000),
    )
