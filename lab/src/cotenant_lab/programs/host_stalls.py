"""Record when the host of a virtual machine did not run one of its processors.

`python -m cotenant_lab.programs.host_stalls CPU`: the program runs on one processor with the highest real-time
priority, sleeps for a millisecond again and again, and prints the begin and the end of every longer sleep in
nanoseconds of CLOCK_MONOTONIC. No other program of the machine can delay it. (`cotenant_lab.programs.stalls` needs no
privilege and also counts delays by other programs.)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

from cotenant.runner.clock import monotonic_ns, pause

SLEEP_NS: Final = 1_000_000
STALL_NS: Final = 2_000_000
"""A sleep that takes this much longer is a stall."""
NOT_PERMITTED: Final = 4


def main(arguments: Sequence[str]) -> int:
    """Record until killed."""
    try:
        os.sched_setaffinity(0, {int(arguments[0])})
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(os.sched_get_priority_max(os.SCHED_FIFO)))
    except PermissionError:
        return NOT_PERMITTED
    while True:
        before_ns = monotonic_ns()
        pause(SLEEP_NS / 1e9)
        now_ns = monotonic_ns()
        if now_ns - before_ns > SLEEP_NS + STALL_NS:
            os.write(sys.stdout.fileno(), f"{before_ns} {now_ns}\n".encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
