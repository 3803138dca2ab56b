"""Preemption by the driver on a simulated device."""

from __future__ import annotations

from collections.abc import Callable

from cotenant.node.model.preemption import PreemptionLevel, TimeSlice
from cotenant.softgpu.sim.device import Device
from cotenant.softgpu.time_slices import length_of, nearest


class SimulatedPreemption:
    """The time slices of a simulated device."""

    def __init__(self, device: Device, now: Callable[[], int]) -> None:
        """Take the device, and the function that returns the instant at which a change happens."""
        self._device = device
        self._now = now

    def level(self) -> PreemptionLevel:
        """Return the level."""
        return PreemptionLevel.TIME_SLICES

    def time_slice(self) -> TimeSlice:
        """Return the named length that is nearest to the device's."""
        return nearest(self._device.slice_ns)

    def set_time_slice(self, time_slice: TimeSlice) -> None:
        """Set the length."""
        self._device.set_slice(self._now(), length_of(time_slice))
