"""A program that serves a request every period, due by the clock whether the program runs or not.

`python -m cotenant_lab.programs.service LOG PERIOD_US ORIGIN_NS [KERNELS KERNEL_NS]`: request i is due at ORIGIN_NS + i
periods. A request that was due while no process ran is lost; a late one is served late. A line per request goes to
LOG: its number, and how late it ended; the first error of the driver ends the program.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

from cotenant.runner.clock import LiveClock, pause
from cotenant_lab.programs.client import CudaClient, CudaError

KERNELS: Final = 4
KERNEL_NS: Final = 100_000
MEMORY_BYTES: Final = 64 << 20
FAILED: Final = 3


def main(arguments: Sequence[str]) -> int:
    """Serve until terminated."""
    log = os.open(arguments[0], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    period_ns, origin_ns = int(arguments[1]) * 1000, int(arguments[2])
    kernels, kernel_ns = (int(word) for word in arguments[3:5] or (KERNELS, KERNEL_NS))
    clock = LiveClock(0)  # the same clock as the bench
    try:
        client = CudaClient()
        client.allocate(MEMORY_BYTES)
        number = (clock.now() - origin_ns) // period_ns + 1
        while True:
            due_ns = origin_ns + number * period_ns
            ahead_ns = due_ns - clock.now()
            if ahead_ns > 0:
                pause(ahead_ns / 1e9)
            for _ in range(kernels):
                client.launch(kernel_ns, 40)
            client.wait()
            os.write(log, f"{number} {clock.now() - due_ns}\n".encode())
            number += 1
    except CudaError as error:
        sys.stderr.write(f"service: {error}\n")
        return FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
