"""How does the node know what a context takes before a tenant has one? One is made for a moment, beside the loop."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from cotenant.domain.gpu import Gpu
from cotenant.errors import CotenantError
from cotenant.live.errand import Errands
from cotenant.live.softgpu import manage

DEADLINE_S: Final = 20.0
_LAST_S: Final = 1.0
_HOOKS: Final = ("LD_PRELOAD", "COTENANT_SLOT", "COTENANT_RECORD")


class Prober:
    """Makes contexts one after the other, beside the loop; each process is ended when it takes too long."""

    def __init__(
        self, errands: Errands, homes: Sequence[Path], environment: Callable[[], Mapping[str, str]], deadline_s: float
    ) -> None:
        """Find software GPUs in the first of these directories that has any; `environment` is added to the node's."""
        self._errands = errands
        self._homes = homes
        self._environment = environment
        self._deadline_s = deadline_s
        self._process: subprocess.Popen[str] | None = None
        self._is_closed = False

    def ask(self, gpu: int, device: Gpu, told: Callable[[int], None]) -> None:
        """Tell in the loop what a context takes of this device, in bytes; 0: that could not be found out."""
        self._errands.send(lambda: self._measure(gpu, device), lambda outcome: told(outcome.result()))

    def close(self) -> None:
        """End what is under way."""
        self._is_closed = True
        process = self._process
        if process is not None:
            process.kill()
        self._errands.close()

    def _measure(self, gpu: int, device: Gpu) -> int:
        if self._is_closed:
            return 0
        try:
            process = self._process = self._start(gpu, device)
        except (OSError, CotenantError):
            return 0
        try:
            said, _ = process.communicate(timeout=self._deadline_s)
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # one that hangs in the kernel is left to it
                process.wait(_LAST_S)
            assert process.stdout is not None
            process.stdout.close()
            said = ""
        self._process = None
        return int(said) if said.strip().isdigit() and process.returncode == 0 else 0

    def _start(self, gpu: int, device: Gpu) -> subprocess.Popen[str]:
        environ = {name: value for name, value in os.environ.items() if name not in _HOOKS}
        soft = next((home for home in self._homes if any(found.alive for found in manage.gpus(home))), None)
        if soft is not None:
            environ |= manage.env(soft, base=environ)
        environ |= {**self._environment(), "CUDA_VISIBLE_DEVICES": device.visible(gpu)}
        command = [sys.executable, "-m", "cotenant.live.watch.context"]
        return subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
