"""Workloads of the demo: launch streams similar to ResNet-50, generated without measured data."""

from __future__ import annotations

import math
import random
from typing import Final

from cotenant.units.instant import MICROSECOND_NS, SECOND_NS
from cotenant.workload.kernel import KernelIdentity
from cotenant.workload.load import TRAINING, Launch, Workload, at_instants, poisson

BLOCK_GROUPS: Final = ((3, 1.0), (4, 0.8), (6, 0.9), (3, 1.3))
"""ResNet-50's four groups of bottleneck blocks: number of blocks, and relative time of their convolutions (assumed)."""
CONVOLUTIONS_US: Final = (18.0, 34.0, 22.0)
"""Times of a bottleneck's three convolutions for a batch of 4, close to public V100 profiles (assumed)."""
ELEMENTWISE_US: Final = 5.0
"""Time of batch norm and activation after each convolution."""
TRAINING_FACTOR: Final = 8.0
"""Ratio of kernel times for a batch of 32 to those for a batch of 4."""
INFERENCE_HOST_US: Final = 18
"""Host time between launches in an eager framework."""
TRAINING_HOST_US: Final = 6
RATE_PER_S: Final = 60.0
REQUESTS: Final = 480

CHANGING_LOAD_S: Final = 13.0
MAX_RATE_PER_S: Final = 200.0
LOAD_PARTS: Final = (
    (0.0, "quiet"),
    (2.0, "step up"),
    (4.0, "step down"),
    (5.5, "burst"),
    (6.1, ""),
    (7.0, "diurnal profile in six seconds"),
)
"""Start in seconds and name of each part of the changing load; `rate_at` gives the rates."""

_BLOCK: Final = (256, 1, 1)


def _kernel(name: str, device_us: float, host_us: int, blocks: int) -> Launch:
    identity = KernelIdentity(name, (blocks, 1, 1), _BLOCK)
    return Launch(identity, round(device_us * MICROSECOND_NS), host_us * MICROSECOND_NS, 0, 64)


def _bottlenecks(factor: float, host_us: int, blocks: int, direction: str) -> list[Launch]:
    launches = []
    for block_group, (count, weight) in enumerate(BLOCK_GROUPS, start=1):
        for _ in range(count):
            for index, convolution_us in enumerate(CONVOLUTIONS_US, start=1):
                name = f"{direction}_conv{block_group}_{index}"
                launches.append(_kernel(name, convolution_us * weight * factor, host_us, blocks))
                launches.append(_kernel(f"{direction}_bn_relu", ELEMENTWISE_US * factor, host_us, 2 * blocks))
    return launches


def service(requests: int, seed: int) -> Workload:
    """Return the service: inference with a batch of 4 and Poisson arrivals."""
    launches = [_kernel("conv_stem", 60.0, INFERENCE_HOST_US, 160), *_bottlenecks(1.0, INFERENCE_HOST_US, 160, "fwd")]
    launches.append(_kernel("fully_connected", 15.0, INFERENCE_HOST_US, 40))
    return Workload("service", tuple(launches), poisson(RATE_PER_S, seed), requests)


def rate_at(second: float) -> float:
    """Return the requests per second of the changing load at an instant."""
    if second >= LOAD_PARTS[-1][0]:
        factor = (1 - math.cos(2 * math.pi * (second - LOAD_PARTS[-1][0]) / (CHANGING_LOAD_S - LOAD_PARTS[-1][0]))) / 2
        return 20 + 130 * factor
    steps = (30.0, 140.0, 30.0, MAX_RATE_PER_S, 30.0)
    index = sum(second >= begin for begin, _ in LOAD_PARTS[1:-1])
    return steps[index]


def changing_service(seed: int, load_s: float = CHANGING_LOAD_S) -> Workload:
    """Return the service with arrivals at the rates of `rate_at`, compressed to `load_s` seconds."""
    rng, instants_ns, second = random.Random(seed), [], 0.0
    while True:  # thinning: arrivals at the highest rate, of which a fraction is kept
        second += rng.expovariate(MAX_RATE_PER_S)
        if second >= load_s:
            break
        if rng.random() * MAX_RATE_PER_S < rate_at(second * CHANGING_LOAD_S / load_s):
            instants_ns.append(round(second * SECOND_NS))
    load = service(len(instants_ns), seed)
    return Workload(load.name, load.launches, at_instants(instants_ns), load.requests)


def training() -> Workload:
    """Return the training job: endless steps with a batch of 32 of forward, backward and weight update."""
    factor = TRAINING_FACTOR
    forward = _bottlenecks(factor, TRAINING_HOST_US, 640, "fwd")
    backward = [
        launch
        for direction in ("dgrad", "wgrad")
        for launch in reversed(_bottlenecks(factor, TRAINING_HOST_US, 640, direction))
    ]
    update = [_kernel("update", 12.0, TRAINING_HOST_US, 320)] * 60
    return Workload("training", (*forward, *backward, *update), TRAINING)
