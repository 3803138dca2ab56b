"""Measures the memory of a CUDA context before a tenant has one, with a short-lived process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from cotenant.errors import CotenantError
from cotenant.node.model.gpu import Gpu
from cotenant.runner.background import BackgroundTasks
from cotenant.softgpu import manage

DEADLINE_S: Final = 20.0
_KILL_WAIT_S: Final = 1.0
_HOOK_VARIABLES: Final = (
    *("LD_PRELOAD", "COTENANT_RECORD"),
    *("COTENANT_SOCKET", "COTENANT_KIND", "COTENANT_GRANT", "COTENANT_REQUIRED"),
)
"""Variables that load the hook, and those with which it would join or be recorded: the process is no tenant's."""


class ContextProber:
    """Measures contexts one after the other in the background; a process that takes too long is killed."""

    def __init__(
        self,
        tasks: BackgroundTasks,
        homes: Sequence[Path],
        environment: Callable[[], Mapping[str, str]],
        deadline_s: float,
    ) -> None:
        """Find software GPUs in the first of these directories that has any; `environment` is added to the node's."""
        self._tasks = tasks
        self._homes = homes
        self._environment = environment
        self._deadline_s = deadline_s
        self._process: subprocess.Popen[str] | None = None
        self._is_closed = False

    def measure(self, gpu: int, device: Gpu, on_result: Callable[[int], None]) -> None:
        """Call `on_result` in the loop with the bytes of a context on this device; 0: unknown."""
        self._tasks.submit(lambda: self._measure(gpu, device), lambda outcome: on_result(outcome.result()))

    def close(self) -> None:
        """End the measurement in progress."""
        self._is_closed = True
        process = self._process
        if process is not None:
            process.kill()
        self._tasks.close()

    def _measure(self, gpu: int, device: Gpu) -> int:
        if self._is_closed:
            return 0
        try:
            process = self._process = self._start(gpu, device)
        except (OSError, CotenantError):
            return 0
        try:
            output, _ = process.communicate(timeout=self._deadline_s)
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a process that hangs in the kernel cannot be killed
                process.wait(_KILL_WAIT_S)
            assert process.stdout is not None
            process.stdout.close()
            output = ""
        self._process = None
        return int(output) if output.strip().isdigit() and process.returncode == 0 else 0

    def _start(self, gpu: int, device: Gpu) -> subprocess.Popen[str]:
        environ = program_environment(self._homes, {**self._environment(), "CUDA_VISIBLE_DEVICES": device.visible(gpu)})
        command = [sys.executable, "-m", "cotenant.node.daemon.monitor.context_program"]
        return subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )


def soft_home_of(homes: Sequence[Path]) -> Path | None:
    """Return the first of these directories in which software GPUs run."""
    return next((home for home in homes if any(soft.alive for soft in manage.gpus(home))), None)


def program_environment(homes: Sequence[Path], more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program that measures a device without the hook."""
    environ = {name: value for name, value in os.environ.items() if name not in _HOOK_VARIABLES}
    soft_home = soft_home_of(homes)
    if soft_home is not None:
        environ |= manage.env(soft_home, base=environ)
    return {**environ, **more}
