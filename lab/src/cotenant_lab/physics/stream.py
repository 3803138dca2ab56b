"""Convert a measured list of kernels to work for the device model."""

from __future__ import annotations

from typing import Final

from cotenant.softgpu.sim.device import Device, DeviceConfig, Kernel, ScriptClient, Step
from cotenant.workload.timeline import Activity, Timeline

MEMORY_BOUND_SHARE: Final = 0.8
"""Fraction of the device's bandwidth that a memory-bound kernel needs: our assumption."""
_LAUNCH_NS: Final = 1000


def kernel_of(measured: Activity, config: DeviceConfig) -> Kernel:
    """Return a grid with as many blocks as it needed SMs, one per SM, that takes the measured time alone."""
    sms = measured.kernel.blocks
    waves = -(-sms // config.sm_count)
    block_ns = max(1, round(measured.device_ns / waves))
    share = MEMORY_BOUND_SHARE if measured.memory_bound else 0.0
    bytes_per_ns = share * config.memory_bytes_per_s / 1e9
    traffic_bytes = int(bytes_per_ns * block_ns / min(sms, config.sm_count))
    return Kernel(blocks=sms, block_ns=block_ns, blocks_per_sm=1, bytes_per_block=traffic_bytes)


def busy_ns(stream: Timeline, config: DeviceConfig) -> int:
    """Return how long the device is busy with one request of these kernels, alone."""
    device = Device(config)
    steps = (*(Step(_LAUNCH_NS, index) for index in range(len(stream.activities))), Step(0, None, sync=True))
    device.run([kernel_of(activity, config) for activity in stream.activities], [ScriptClient(steps=steps)])
    return device.count().busy_ns
