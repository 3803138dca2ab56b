"""A measured list of kernels as work for the device model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cotenant.format.measured.orion import Bound, MeasuredKernel
from cotenant.sim.device import Device, DeviceConfig, Kernel, ScriptClient, Step

MEMORY_BOUND_SHARE: Final = 0.8
"""Of the device's bandwidth, asked for by a kernel that was classed as memory-bound: our assumption."""
_LAUNCH_NS: Final = 1000


def kernel_of(measured: MeasuredKernel, config: DeviceConfig) -> Kernel:
    """A grid of as many blocks as it needed SMs, one to an SM, that takes the measured time alone."""
    waves = -(-measured.sms // config.sm_count)
    block_ns = max(1, round(measured.duration_ns / waves))
    share = MEMORY_BOUND_SHARE if measured.bound is Bound.MEMORY else 0.0
    bytes_per_ns = share * config.memory_bytes_per_s / 1e9
    traffic_bytes = int(bytes_per_ns * block_ns / min(measured.sms, config.sm_count))
    return Kernel(blocks=measured.sms, block_ns=block_ns, blocks_per_sm=1, bytes_per_block=traffic_bytes)


def busy_ns(stream: Sequence[MeasuredKernel], config: DeviceConfig) -> int:
    """How long the device is busy with one request of these kernels, alone."""
    device = Device(config)
    steps = (*(Step(_LAUNCH_NS, index) for index in range(len(stream))), Step(0, None, sync=True))
    device.run([kernel_of(kernel, config) for kernel in stream], [ScriptClient(steps=steps)])
    return device.count().busy_ns
