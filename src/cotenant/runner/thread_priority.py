"""Scheduling of a thread that must run soon after it is woken."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from typing import Final

_PR_SET_TIMERSLACK: Final = 29
_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}
_RESET_ON_FORK: Final = 1
_SLICE_NS: Final = 100_000
"""The shortest slice that Linux allows."""
_NICE_STEP: Final = 5
_ATTRIBUTES: Final = struct.Struct("<IIQiIQQQ")


def request_low_latency() -> None:
    """Let the calling thread wake without timer slack and preempt threads that compute.

    The thread requests short time slices, which Linux 6.12 and later schedules first (sched_setattr(2),
    `sched_runtime` of SCHED_OTHER), and a higher priority, which only privileged processes get. Threads and processes
    that it starts have the default scheduling.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)  # the default slack is 50 us
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return  # another scheduling policy was chosen for this process
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    for nice_value in (nice - _NICE_STEP, nice):
        request = _ATTRIBUTES.pack(
            _ATTRIBUTES.size, os.SCHED_OTHER, _RESET_ON_FORK, max(nice_value, -20), 0, _SLICE_NS, 0, 0
        )
        if libc.syscall(number, 0, request, 0) == 0:
            return
