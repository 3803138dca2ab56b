"""Programs as the device runs them: synthetic ones of every kind, and lists of kernels recorded on a V100.

A program is a round that repeats: kernels with the host's time before each, and points at which the host waits for the
device. The predictor receives what a run alone shows: a `TaskUse`, as a profile contains it.
"""

from __future__ import annotations

import math
import random
from typing import Final

import msgspec

from cotenant.predict.profile_usage import few_widths
from cotenant.predict.usage import TaskUse
from cotenant.softgpu.sim.device import Device, DeviceConfig, Kernel, Limits, ScriptClient, Step
from cotenant.units.share import WHOLE_PPM
from cotenant.workload.timeline import Timeline
from cotenant_lab.physics.stream import MEMORY_BOUND_SHARE, kernel_of

LIMITS: Final = Limits(clients=16, contexts=16, streams=16, events=1, ops=65536, records=64)
_ROUNDS_ALONE: Final = 3
_BOUND: Final = 0.6
"""A kernel that needs at least this fraction of the bandwidth counts as memory-bound."""
_LAUNCH_NS: Final = (3_000, 9_000)
_ROUND_NS: Final = (30_000, 200_000_000)


class RoundProgram(msgspec.Struct, frozen=True):
    """A round of kernels, and what a run alone shows of it."""

    name: str
    kernels: tuple[Kernel, ...]
    host_ns: tuple[int, ...]
    """Before each launch."""
    waits: tuple[bool, ...]
    """Whether the host waits for the device after the launch; after the last one it does."""
    before_ns: int
    """Host time at the beginning of a round."""
    alone_ns: float = 0.0
    use: TaskUse = TaskUse()

    def steps(self, first: int, host: float = 1.0) -> tuple[Step, ...]:
        """Return a round with kernels numbered from `first`, on a host that is `host` times as slow."""
        round_steps = []
        for index, (host_ns, wait) in enumerate(zip(self.host_ns, self.waits, strict=True)):
            begin_ns = self.before_ns if index == 0 else 0
            last = index == len(self.kernels) - 1
            round_steps.append(Step(round(host * (begin_ns + host_ns)), first + index, sync=wait or last))
        return tuple(round_steps)


def synthetic(rng: random.Random, name: str, config: DeviceConfig, least: float = 0.0) -> RoundProgram:
    """Return a program with random number, length, width and bandwidth of kernels, and a random host.

    `least`: minimum fraction of the SMs that every kernel needs.
    """
    count = round(_log_uniform(rng, 3, 150))
    usual_ns = _log_uniform(rng, 4_000, 2_000_000)
    usual_ns = min(max(usual_ns, _ROUND_NS[0] / count), _ROUND_NS[1] / count)
    varies, wide, widths_vary = rng.uniform(0, 1), rng.uniform(0.04, 1.3), rng.uniform(0, 0.9)
    bound = rng.choice((0.0, rng.random(), rng.random() ** 2, 1.0))
    kernels = []
    for _ in range(count):
        length_ns = max(1_000.0, usual_ns * math.exp(rng.gauss(0, varies)))
        bandwidth = rng.uniform(_BOUND, 1.0) if rng.random() < bound else rng.uniform(0, 0.3)
        blocks = max(1, round(config.sm_count * min(max(wide * math.exp(rng.gauss(0, widths_vary)), least), 4.0)))
        kernels.append(_kernel(blocks, length_ns, bandwidth, config))
    return _hosted(rng, name, tuple(kernels), usual_ns, config)


def recorded(rng: random.Random, name: str, stream: Timeline, config: DeviceConfig) -> RoundProgram:
    """Return a recorded list of kernels with a synthetic host."""
    kernels = tuple(kernel_of(activity, config) for activity in stream.activities)
    usual_ns = sum(activity.device_ns for activity in stream.activities) / len(kernels)
    return _hosted(rng, name, kernels, usual_ns, config)


def _hosted(
    rng: random.Random, name: str, kernels: tuple[Kernel, ...], usual_ns: float, config: DeviceConfig
) -> RoundProgram:
    """Add a host that runs ahead, is as slow as the device or waits at times, with or without work of its own."""
    launch_ns = rng.uniform(*_LAUNCH_NS)
    if rng.random() < 0.3:
        launch_ns = max(launch_ns, usual_ns * _log_uniform(rng, 0.3, 4))
    wait_interval = round(_log_uniform(rng, 1, len(kernels) + 1)) if rng.random() < 0.5 else len(kernels)
    before_ns = usual_ns * len(kernels) * (_log_uniform(rng, 0.01, 4) if rng.random() < 0.6 else 0.0)
    waits = tuple((index + 1) % wait_interval == 0 for index in range(len(kernels)))
    return _measured(RoundProgram(name, kernels, (round(launch_ns),) * len(kernels), waits, round(before_ns)), config)


def _measured(program: RoundProgram, config: DeviceConfig) -> RoundProgram:
    device = Device(config, LIMITS)
    (result,) = device.run(
        list(program.kernels), [ScriptClient(steps=program.steps(0), repeats=_ROUNDS_ALONE, group_label=1)]
    )
    alone_ns = result.repeat_ends_ns[-1] / _ROUNDS_ALONE
    busy_ns = device.count().busy_ns / _ROUNDS_ALONE
    lengths = [(kernel, _length_ns(kernel, config)) for kernel in program.kernels]
    whole_ns = sum(length_ns for _, length_ns in lengths)
    use = TaskUse(
        duty_ppm=_ppm(busy_ns / alone_ns),
        widths=_widths(lengths, whole_ns, config),
        memory_ppm=_ppm(sum(length_ns for kernel, length_ns in lengths if _is_bound(kernel, config)) / whole_ns),
        kernel_ns=round(whole_ns / len(lengths)),
        longest_ns=round(max(length_ns for _, length_ns in lengths)),
        round_ns=round(alone_ns),
        round_device_ns=round(busy_ns),
        active_ppm=WHOLE_PPM,
    )
    return msgspec.structs.replace(program, alone_ns=alone_ns, use=use)


def _kernel(blocks: int, length_ns: float, bandwidth: float, config: DeviceConfig) -> Kernel:
    """Return a grid that takes `length_ns` alone and then needs this fraction of the bandwidth."""
    waves = -(-blocks // config.sm_count)
    block_ns = max(1, round(length_ns / waves))
    traffic = bandwidth * config.memory_bytes_per_s / 1e9 * block_ns / min(blocks, config.sm_count)
    return Kernel(blocks=blocks, block_ns=block_ns, blocks_per_sm=1, bytes_per_block=int(traffic))


def _length_ns(kernel: Kernel, config: DeviceConfig) -> float:
    return float(-(-kernel.blocks // config.sm_count) * kernel.block_ns)


def _is_bound(kernel: Kernel, config: DeviceConfig) -> bool:
    per_ns = min(kernel.blocks, config.sm_count) * kernel.bytes_per_block / kernel.block_ns
    return per_ns >= min(_BOUND, MEMORY_BOUND_SHARE) * 0.99 * config.memory_bytes_per_s / 1e9


def _widths(lengths: list[tuple[Kernel, float]], whole_ns: float, config: DeviceConfig) -> tuple[tuple[int, int], ...]:
    """Return widths as a profile contains them."""
    held = ((min(1.0, kernel.blocks / config.sm_count), length_ns / whole_ns) for kernel, length_ns in lengths)
    return few_widths(tuple(held))


def _log_uniform(rng: random.Random, least: float, most: float) -> float:
    return math.exp(rng.uniform(math.log(least), math.log(most)))


def _ppm(part: float) -> int:
    return min(max(round(part * WHOLE_PPM), 0), WHOLE_PPM)
