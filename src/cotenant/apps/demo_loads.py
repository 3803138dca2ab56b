"""Which two programs does the demo run? Streams like ResNet-50's, made here: the demo needs no measurements."""

from __future__ import annotations

import math
import random
from typing import Final

from cotenant.domain.instant import MICROSECOND_NS, SECOND_NS
from cotenant.domain.kernel import KernelIdentity
from cotenant.domain.load import TRAINING, Launch, Load, listed, poisson

STAGES: Final = ((3, 1.0), (4, 0.8), (6, 0.9), (3, 1.3))
"""ResNet-50's four stages: how many bottleneck blocks, and how their convolutions compare in time. Ours."""
CONVOLUTIONS_US: Final = (18.0, 34.0, 22.0)
"""The three convolutions of a bottleneck, of a batch of 4 images. About what public V100 profiles show; ours."""
ELEMENTWISE_US: Final = 5.0
"""Batch norm and activation after each."""
TRAINING_FACTOR: Final = 8.0
"""A batch of 32 instead of 4."""
INFERENCE_HOST_US: Final = 18
"""From a launch to the next one in an eager framework."""
TRAINING_HOST_US: Final = 6
RATE_PER_S: Final = 60.0
REQUESTS: Final = 480

DAY_S: Final = 13.0
BUSIEST_PER_S: Final = 200.0
DAY_PARTS: Final = (
    (0.0, "quiet"),
    (2.0, "a step up"),
    (4.0, "and down"),
    (5.5, "a burst"),
    (6.1, ""),
    (7.0, "a day in six seconds"),
)
"""From when on, in seconds, the load is what; `rate_at` says how much that is."""

_BLOCK: Final = (256, 1, 1)


def _kernel(name: str, device_us: float, host_us: int, blocks: int) -> Launch:
    identity = KernelIdentity(name, (blocks, 1, 1), _BLOCK)
    return Launch(identity, round(device_us * MICROSECOND_NS), host_us * MICROSECOND_NS, 0, 64)


def _bottlenecks(factor: float, host_us: int, blocks: int, direction: str) -> list[Launch]:
    launches = []
    for stage, (count, weight) in enumerate(STAGES, start=1):
        for _ in range(count):
            for place, convolution_us in enumerate(CONVOLUTIONS_US, start=1):
                name = f"{direction}_conv{stage}_{place}"
                launches.append(_kernel(name, convolution_us * weight * factor, host_us, blocks))
                launches.append(_kernel(f"{direction}_bn_relu", ELEMENTWISE_US * factor, host_us, 2 * blocks))
    return launches


def service(requests: int, seed: int) -> Load:
    """Inference, a batch of 4: requests come at random."""
    launches = [_kernel("conv_stem", 60.0, INFERENCE_HOST_US, 160), *_bottlenecks(1.0, INFERENCE_HOST_US, 160, "fwd")]
    launches.append(_kernel("fully_connected", 15.0, INFERENCE_HOST_US, 40))
    return Load("service", tuple(launches), poisson(RATE_PER_S, seed), requests)


def rate_at(second: float) -> float:
    """Requests a second in the demo's short day."""
    if second >= DAY_PARTS[-1][0]:
        noon = (1 - math.cos(2 * math.pi * (second - DAY_PARTS[-1][0]) / (DAY_S - DAY_PARTS[-1][0]))) / 2
        return 20 + 130 * noon
    steps = (30.0, 140.0, 30.0, BUSIEST_PER_S, 30.0)
    place = sum(second >= begin for begin, _ in DAY_PARTS[1:-1])
    return steps[place]


def changing_service(seed: int, day_s: float = DAY_S) -> Load:
    """The same service under a load that changes: at random, as often as `rate_at` says; a day may be shorter."""
    chance, instants_ns, second = random.Random(seed), [], 0.0
    while True:  # more than enough, of which as many are left out as are too many then
        second += chance.expovariate(BUSIEST_PER_S)
        if second >= day_s:
            break
        if chance.random() * BUSIEST_PER_S < rate_at(second * DAY_S / day_s):
            instants_ns.append(round(second * SECOND_NS))
    load = service(len(instants_ns), seed)
    return Load(load.name, load.launches, listed(instants_ns), load.requests)


def training() -> Load:
    """Steps with a batch of 32 without end: forward, backward (twice the work), and the update of the weights."""
    factor = TRAINING_FACTOR
    forward = _bottlenecks(factor, TRAINING_HOST_US, 640, "fwd")
    backward = [
        launch
        for direction in ("dgrad", "wgrad")
        for launch in reversed(_bottlenecks(factor, TRAINING_HOST_US, 640, direction))
    ]
    update = [_kernel("update", 12.0, TRAINING_HOST_US, 320)] * 60
    return Load("training", (*forward, *backward, *update), TRAINING)
