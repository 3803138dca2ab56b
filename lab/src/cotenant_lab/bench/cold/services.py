"""Eight kinds of services without a profile, and the training that runs next to them.

All are generated. The kernels of the training take 200 us in the median and none takes more than 1 ms; one in five
leaves half of the SMs free.
"""

from __future__ import annotations

import math
import random
from typing import Final

from cotenant.units.instant import MICROSECOND_NS, MILLISECOND_NS, SECOND_NS
from cotenant.units.value import Value
from cotenant.workload.kernel import KernelIdentity
from cotenant.workload.load import TRAINING, Launch, Workload, poisson

_SMS: Final = 80
_BLOCK: Final = (1024, 1, 1)
_REGISTERS: Final = 64
"""One such block fits on an SM."""
RATE_PER_S: Final = 60.0
SHAPES: Final = 10_000
_NAME_BYTES: Final = 1_500


class ColdService(Value, frozen=True):
    """A service that was never profiled."""

    name: str
    load: Workload
    cycle: int = 1
    """The launches of the load are those of this many requests in turn."""
    processes: int = 1
    drop_at_ns: int = 0
    """When the clock of the device drops; 0: never."""
    clock_ppm: int = 600_000
    """The clock after that."""


def _kernel(name: str, device_ns: int, waves: int, interval_ns: int, extra_blocks: int = 0) -> Launch:
    grid = (_SMS * waves - extra_blocks, 1, 1)
    return Launch(KernelIdentity(name, grid, _BLOCK), device_ns, interval_ns, registers=_REGISTERS)


def _workload(name: str, launches: list[Launch], requests: int, seed: int, *, graph: bool = False) -> Workload:
    return Workload(name, tuple(launches), poisson(RATE_PER_S, seed), requests, graph)


def _small_kernels(count: int, rng: random.Random, name: str = "small kernel") -> list[Launch]:
    return [
        _kernel(f"{name} {index}", rng.randrange(20, 60) * MICROSECOND_NS, 2, rng.randrange(5, 15) * MICROSECOND_NS)
        for index in range(count)
    ]


def cold_services(for_ns: int, seed: int = 0) -> list[ColdService]:
    """Return the services, each with requests for about this time."""
    rng = random.Random(seed)
    requests = max(round(RATE_PER_S * for_ns / SECOND_NS), 20)
    small = _small_kernels(100, rng)
    shapes = [
        _kernel(f"shaped kernel {index % 100}", 40 * MICROSECOND_NS, 2, 8 * MICROSECOND_NS, index // 100)
        for index in range(SHAPES)
    ]
    stem = "void cutlass::Kernel<" + "cutlass::gemm::threadblock::" * (_NAME_BYTES // 28)
    factors = [rng.uniform(0.4, 2.5) for _ in range(16)]
    varying = [
        _kernel(f"decode {index}", round(60 * MICROSECOND_NS * factor), 2, 8 * MICROSECOND_NS)
        for factor in factors
        for index in range(60)
    ]
    return [
        ColdService(
            "one long kernel", _workload("long", [_kernel("long kernel", 4 * MILLISECOND_NS, 80, 0)], requests, 1)
        ),
        ColdService("many small kernels", _workload("small", small, requests, 2)),
        ColdService("graph", _workload("graph", _small_kernels(100, rng, "node"), requests, 3, graph=True)),
        ColdService("10,000 shapes", _workload("shapes", shapes, requests, 4), cycle=SHAPES // 100),
        ColdService("long names", _workload("names", _small_kernels(100, rng, stem), requests, 5)),
        ColdService("request-dependent lengths", _workload("lengths", varying, requests, 6), cycle=len(factors)),
        ColdService("clock drop", _workload("drop", small, requests, 7), drop_at_ns=for_ns // 2 // 10**6 * 10**6),
        ColdService("several processes", _workload("processes", _small_kernels(40, rng), requests, 8), processes=3),
    ]


def cold_training(seed: int = 0) -> Workload:
    """Return a training program with 60 kernels per step."""
    rng = random.Random(seed)
    launches = []
    for index in range(60):
        length_us = min(max(round(200 * math.exp(rng.gauss(0, 0.6))), 40), 1000)
        waves = max(length_us // 25, 1)
        if index % 5 == 0:  # a wave of half of the SMs
            kernel = KernelIdentity(f"train {index}", (_SMS // 2, 1, 1), _BLOCK)
            launches.append(Launch(kernel, min(length_us, 100) * MICROSECOND_NS, 4000, registers=_REGISTERS))
        else:
            launches.append(_kernel(f"train {index}", length_us * MICROSECOND_NS, waves, 4 * MICROSECOND_NS))
    return Workload("training", tuple(launches), TRAINING)
