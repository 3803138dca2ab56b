"""A training program that always has work and misbehaves on order; orders are read from a file.

`python -m cotenant_lab.programs.trainer LOG ORDERS [STEPS]`: LOG gets a line per step with its instant and the last
order done. ORDERS holds a number and a word; a new number is an order, which the first process of this program that
reads it executes once.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from cotenant.runner.clock import LiveClock, pause
from cotenant_lab.programs.client import OUT_OF_MEMORY, CudaClient, CudaError

KERNELS: Final = 8
KERNEL_NS: Final = 200_000
MEMORY_BYTES: Final = 256 << 20
FAILED: Final = 3
_PIECE_BYTES: Final = 128 << 20
_PATTERN: Final = bytes(range(256))
_FLOOD: Final = 2000
_CHILDREN: Final = 3
_REST_S: Final = 0.5


class Worker:
    """One process of the program."""

    def __init__(self, log: Path, orders: Path) -> None:
        """Create the context, and write data into device memory that must persist."""
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._orders = orders
        self._done = _order(orders)[0]
        self._clock = LiveClock(0)  # the same clock as the bench
        self.client = CudaClient()
        self._memory = self.client.allocate(MEMORY_BYTES)
        self.client.write(self._memory, _PATTERN)
        self._misdeeds: dict[str, Callable[[], None]] = {
            "exit": lambda: sys.exit(FAILED),
            "segv": self._crash,
            "abort": os.abort,
            "leak": self._leak,
            "flood": self._flood,
            "rest": lambda: pause(_REST_S),
            "children": self._children,
        }

    def work(self, steps: int) -> None:
        """Run step after step."""
        for _ in range(steps):
            for _ in range(KERNELS):
                self.client.launch(KERNEL_NS)
            number, word = _order(self._orders)
            if number > self._done:
                self._done = number
                self._misdeeds[word]()
            self.client.wait()
            if self.client.read(self._memory, len(_PATTERN)) != _PATTERN:
                os.write(self._log, b"spoilt\n")
                sys.exit(FAILED)
            os.write(self._log, f"{self._clock.now()} {self._done}\n".encode())

    def _crash(self) -> None:
        """Crash with work in flight."""
        ctypes.string_at(0)

    def _leak(self) -> None:
        """Allocate until the device refuses, and continue."""
        while True:
            self.client.allocate(_PIECE_BYTES)

    def _flood(self) -> None:
        for _ in range(_FLOOD):
            self.client.launch(KERNEL_NS // 4)

    def _children(self) -> None:
        """Start processes that hold memory, and kill them, as a host without memory does with data loaders."""
        children = [subprocess.Popen([sys.executable, "-c", _HOARD]) for _ in range(_CHILDREN)]
        pause(_REST_S)
        for child in children:
            child.kill()
            child.wait()


_HOARD: Final = (
    "from cotenant_lab.programs.client import CudaClient\n"
    "client = CudaClient()\n"
    "held = [client.allocate(64 << 20) for _ in range(4)]\n"
    "while True: client.launch(200_000); client.wait()"
)


def _order(path: Path) -> tuple[int, str]:
    with contextlib.suppress(OSError, ValueError):
        number, word = path.read_text(encoding="utf-8").split()
        return int(number), word
    return 0, ""


def main(arguments: Sequence[str]) -> int:
    """Work until terminated or until the driver fails."""
    try:
        Worker(Path(arguments[0]), Path(arguments[1])).work(int(arguments[2]) if len(arguments) > 2 else sys.maxsize)
    except CudaError as error:
        sys.stderr.write(f"worker: {error}\n")
        return OUT_OF_MEMORY if error.code == OUT_OF_MEMORY else FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
