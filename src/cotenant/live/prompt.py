"""How soon does a thread run once it has something to do? Sooner than those that compute, if it asks for little."""

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
"""The shortest that Linux allows."""
_NICER: Final = 5
_ATTRIBUTES: Final = struct.Struct("<IIQiIQQQ")


def be_prompt() -> None:
    """From now on this thread wakes on the instant, and soon gets a core on which others compute.

    It asks for short turns (since Linux 6.12 who does so comes first; sched_setattr(2), `sched_runtime` of ordinary
    threads), and for a higher priority, which the privileged get. Threads and processes that it starts are ordinary.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)  # wake on the instant, not 50 us around it
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return  # somebody has said better how this process is to be scheduled
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    for wanted in (nice - _NICER, nice):
        asked = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, _RESET_ON_FORK, max(wanted, -20), 0, _SLICE_NS, 0, 0)
        if libc.syscall(number, 0, asked, 0) == 0:
            return
