"""Preemption of running kernels by the driver: what a device offers beyond the gate.

The gate decides before a launch; a kernel that runs is not its concern. What the driver can do then has levels.
"""

from __future__ import annotations

import enum


class PreemptionLevel(enum.IntEnum):
    """What can interrupt a running kernel; each level includes those before it."""

    LAUNCHES = 0
    """Nothing: only launches wait, and kernels end by themselves. Clients of one MPS server are at this level."""
    TIME_SLICES = 1
    """The driver alternates between processes in time slices, whose length can be chosen."""
    CHANNEL_GROUPS = 2
    """The channels of one process can be taken off the device and put back. No implementation here offers it: NVIDIA's
    driver has no public interface to it."""


class TimeSlice(enum.Enum):
    """Lengths of time slices, with the names and numbers of `nvidia-smi compute-policy`."""

    DEFAULT = 0
    SHORT = 1
    MEDIUM = 2
    LONG = 3
