"""What the node does to processes and devices, when it must."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from cotenant.domain.protect import GpuWatch


class LiveWardens:
    """Ends processes, and says how devices are doing."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """`say` gets a line for whatever a person should know."""
        self._say = say

    def kill(self, gpu: int, slot: int, pid: int) -> None:
        """End a tenant's parent, which takes its child along; one that is gone is no error."""
        del gpu
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        except PermissionError:
            self._say(f"cannot end the tenant in slot {slot}: process {pid} is another user's")

    def restart_mps(self, gpu: int) -> None:
        """Nobody supervises a server yet."""
        self._say(f"the MPS server of GPU {gpu} is gone")

    def show(self, gpu: int, watch: GpuWatch) -> None:
        """Say it to people."""
        self._say(f"GPU {gpu} is {watch.health.value}{': ' if watch.why else ''}{watch.why}")
