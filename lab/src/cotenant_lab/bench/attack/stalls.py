"""Correct latencies by the time in which the host of a virtual machine let none of its processors run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from cotenant.units.instant import Instant

_PROGRAM: Final = "cotenant_lab.programs.host_stalls"


class StallRecorder:
    """Records the stalls of every processor; without permission for real-time priority there are none."""

    def __init__(self, home: Path) -> None:
        """Write the records below a directory."""
        self._files = [home / f"stalls-{cpu}" for cpu in sorted(os.sched_getaffinity(0))]
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        """Start one recorder on each processor."""
        for cpu, path in zip(sorted(os.sched_getaffinity(0)), self._files, strict=True):
            with path.open("wb") as output:
                command = [sys.executable, "-m", _PROGRAM, str(cpu)]
                self._processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output))
        return self

    def __exit__(self, *_: object) -> None:
        """End the recorders."""
        for process in self._processes:
            process.kill()
            process.wait()

    def read(self) -> list[tuple[Instant, Instant]]:
        """Return all stalls of all processors so far."""
        lines = [line for path in self._files for line in path.read_text().split("\n")[:-1]]
        return [(int(begin), int(end)) for begin, end in (line.split() for line in lines)]


def stalled_ns(stalls: list[tuple[Instant, Instant]], begin: Instant, end: Instant) -> int:
    """Return for how long at least one processor stood still between two instants."""
    total_ns, until = 0, begin
    for first, last in sorted(stalls):
        lost_ns = min(last, end) - max(first, until)
        if lost_ns > 0:
            total_ns += lost_ns
            until = min(last, end)
    return total_ns


def corrected(
    latencies_ns: Mapping[int, int],
    due: Mapping[int, Instant],
    stalls: list[tuple[Instant, Instant]],
    least_ns: int,
) -> dict[int, int]:
    """Return latencies without the time of stalls; none becomes less than what the device needs.

    A stall also delays the requests that wait for a delayed one, so the stalls since the service was last idle count.
    """
    result: dict[int, int] = {}
    begin = end = 0
    for number in sorted(latencies_ns):
        begin = begin if due[number] < end else due[number]
        end = due[number] + latencies_ns[number]
        took_ns = latencies_ns[number] - stalled_ns(stalls, begin, end)
        result[number] = max(took_ns, min(latencies_ns[number], least_ns))
    return result
