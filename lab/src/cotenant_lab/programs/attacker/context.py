"""What every attack has: a CUDA client, facts about its target, a time limit, and a report of what it achieved."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

from cotenant.runner.clock import monotonic_ns, pause
from cotenant_lab.programs.client import CudaClient, CudaError

LIBC: Final = ctypes.CDLL(None, use_errno=True)
_KERNELS: Final = 4
_KERNEL_NS: Final = 200_000
_PAUSE_S: Final = 0.005


class AttackContext:
    """One attacker process."""

    def __init__(self, home: Path) -> None:
        """Read the facts that the bench wrote."""
        self.home = home
        self.facts: dict[str, Any] = json.loads((home / "facts.json").read_text())
        self.rng = random.Random(self.facts["seed"])
        self.attempts = 0
        self.successes = 0
        self.client: CudaClient | None = None
        self._end_ns = 0
        self._report = os.open(home / "report", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def connect_device(self) -> None:
        """Create a context on the device; an attacker that has no access to the device attacks without one."""
        try:
            self.client = CudaClient()
        except (CudaError, OSError) as error:
            self.note("no-device", detail=str(error))

    def note(self, what: str, **fields: object) -> None:
        """Append a line to the report."""
        line = {"what": what, "at_ns": monotonic_ns(), "pid": os.getpid(), **fields}
        with contextlib.suppress(OSError):
            os.write(self._report, (json.dumps(line) + "\n").encode())

    def is_ordered(self, word: str) -> bool:
        """Return whether the bench gave this order."""
        return (self.home / word).exists()

    def begin(self) -> None:
        """Start the time of the attack."""
        self._end_ns = monotonic_ns() + round(self.facts["attack_s"] * 1e9)
        self.note("begin")

    @property
    def has_time(self) -> bool:
        """Whether the attack has time left."""
        return monotonic_ns() < self._end_ns and not self.is_ordered("stop")

    def step(self) -> None:
        """Work like a well-behaved tenant for a millisecond."""
        if self.client is None:
            pause(_PAUSE_S)
            return
        for _ in range(_KERNELS):
            self.client.launch(_KERNEL_NS)
        self.client.wait()

    def rounds(self) -> Iterator[int]:
        """Repeat until the end of the attack, with work between the repetitions."""
        number = 0
        while self.has_time:
            yield number
            number += 1
            self.step()

    def wait_for_end(self) -> None:
        """Do nothing until the end of the attack."""
        while self.has_time:
            pause(_PAUSE_S)

    def count(self, attempts: int) -> None:
        """Count attempts; the first one is reported at once, because an attacker may not live to report the others."""
        if not self.attempts:
            self.note("attempted")
        self.attempts += attempts

    def attempt(self, action: Callable[..., object], *arguments: object) -> bool:
        """Count an attempt, and a success unless it raises an error of the system or of the driver."""
        self.count(1)
        try:
            action(*arguments)
        except (OSError, CudaError, ValueError):
            return False
        self.successes += 1
        return True

    def in_background(self, action: Callable[[], None]) -> threading.Thread:
        """Repeat an action in a thread until the end of the attack."""

        def repeat() -> None:
            while self.has_time:
                with contextlib.suppress(OSError, ValueError):
                    action()

        thread = threading.Thread(target=repeat, daemon=True)
        thread.start()
        return thread

    def child(self, action: Callable[[], object]) -> int:
        """Run an action in a forked process, which ends with it; return its pid."""
        pid = os.fork()
        if not pid:
            _run_and_exit(action)
        return pid

    def await_children(self, pids: list[int]) -> None:
        """Kill the children after the end of the attack, and collect them."""
        self.wait_for_end()
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.waitpid(pid, 0)


def _run_and_exit(action: Callable[[], object]) -> NoReturn:
    code = 1
    with contextlib.suppress(BaseException):
        action()
        code = 0
    os._exit(code)


def check_result(result: int) -> int:
    """Raise the error of a failed function of the C library."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
