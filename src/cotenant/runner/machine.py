"""The machine of a report: its processor and how busy it was when the work began."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Final

import msgspec

from cotenant.runner.clock import unix_ns

_BUSY_LOAD: Final = 0.5
"""Load average per core from which measurements are disturbed."""


class MachineState(msgspec.Struct, frozen=True):
    """A machine at an instant."""

    at_unix_ns: int
    processor: str
    cores: int
    load: float
    """The load average of the last minute: how many threads ran or wanted to run."""

    @property
    def is_busy(self) -> bool:
        """Whether other programs use so much of the machine that measured times are unreliable."""
        return self.load > _BUSY_LOAD * self.cores


def read_machine() -> MachineState:
    """Return the state of this machine now."""
    return MachineState(unix_ns(), processor_name(), os.cpu_count() or 1, round(os.getloadavg()[0], 2))


def processor_name() -> str:
    """Return the name of the processor, or its architecture where the kernel knows no name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
