"""The loads of `bench collective`: a training job with all-reduces, and services that are busy in turn."""

from __future__ import annotations

import random
from typing import Final, Literal, TypeAlias

from cotenant.units.instant import MICROSECOND_NS, MILLISECOND_NS, SECOND_NS, Duration
from cotenant.workload.kernel import KernelIdentity
from cotenant.workload.load import TRAINING, Launch, Workload, at_instants
from cotenant_lab.bench.cold.services import cold_training

RATE_PER_S: Final = 60
BURST_NS: Final = 250 * MILLISECOND_NS
KERNELS_PER_COLLECTIVE: Final = 15
COLLECTIVE_NS: Final = 500 * MICROSECOND_NS
"""25 MB, the size of PyTorch's gradient buckets, at 50 GB/s: our choice."""
_SERVICE_KERNELS: Final = 48
"""A request takes 2 ms alone, as in the demo."""
_CHANNELS: Final = 16
"""Blocks of an NCCL kernel, each on an SM of its own."""
Pattern: TypeAlias = Literal["requests in turn", "bursts in turn"]
PATTERNS: Final[tuple[Pattern, ...]] = ("requests in turn", "bursts in turn")


def training() -> tuple[Workload, frozenset[int]]:
    """Return a training step with an all-reduce after every 15 kernels, and the steps that launch one."""
    launches: list[Launch] = []
    collectives = set()
    kernel = KernelIdentity("ncclDevKernel_AllReduce_Sum_f32_RING_LL", (_CHANNELS, 1, 1), (1024, 1, 1))
    for index, launch in enumerate(cold_training().launches, start=1):
        launches.append(launch)
        if index % KERNELS_PER_COLLECTIVE == 0:
            collectives.add(len(launches))
            launches.append(Launch(kernel, COLLECTIVE_NS, 4 * MICROSECOND_NS, registers=64))
    return Workload("rank", tuple(launches), TRAINING), frozenset(collectives)


def service(pattern: Pattern, rank: int, for_ns: Duration) -> Workload:
    """Return a service of 60 requests per second in the mean, whose requests come when the other one's do not."""
    rng = random.Random(rank)
    kernels = random.Random(7)
    launches = tuple(
        Launch(
            KernelIdentity(f"service {index}", (160, 1, 1), (1024, 1, 1)),
            kernels.randrange(20, 60) * MICROSECOND_NS,
            kernels.randrange(5, 15) * MICROSECOND_NS,
            registers=64,
        )
        for index in range(_SERVICE_KERNELS)
    )
    instants = _requests_in_turn(rank, for_ns) if pattern == "requests in turn" else _bursts(rank, for_ns, rng)
    return Workload(f"service {rank}", launches, at_instants(instants), len(instants))


def _requests_in_turn(rank: int, for_ns: Duration) -> list[int]:
    """Return periodic requests; those of the second service come half a period after those of the first."""
    period_ns = SECOND_NS // RATE_PER_S
    return list(range(MILLISECOND_NS + rank * period_ns // 2, for_ns, period_ns))


def _bursts(rank: int, for_ns: Duration, rng: random.Random) -> list[int]:
    """Return Poisson arrivals at twice the rate, in every second burst."""
    instants = []
    at_ns = 0.0
    while at_ns < for_ns:
        at_ns += rng.expovariate(2 * RATE_PER_S / SECOND_NS)
        if int(at_ns // BURST_NS) % 2 == rank:
            instants.append(int(at_ns))
    return [instant for instant in instants if instant < for_ns]
