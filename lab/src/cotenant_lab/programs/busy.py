"""A program that keeps the device busy with one kind of work.

`python -m cotenant_lab.programs.busy KIND` launches burst after burst with two of them in flight: more than the gate
admits at once, so that a late host causes no gap. With `--itself` it limits itself to a percentage by the size of its
grids, as the baseline does.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from cotenant_lab.programs.client import CudaClient, CudaError
from cotenant_lab.programs.grid_limiter import GridLimiter

_CAPTURE_RELAXED: Final = 2
_UNDER_WAY: Final = 2
_THREADS_PER_SM: Final = 2048


class Kind(NamedTuple):
    """Contents of a burst."""

    kernel_ns: int
    part: float
    """Fraction of the SMs that have a block."""
    launches: int
    nodes: int = 0
    """Kernels in a graph; 0: no graph."""
    others: tuple[tuple[int, float], ...] = ()
    """Kernels of other lengths and widths, alternating with it."""


KINDS: Final = {
    "small": Kind(50_000, 0.5, 160),
    "large": Kind(2_000_000, 1.0, 2),
    "graph": Kind(100_000, 1.0, 8, 5),
    "narrow": Kind(100_000, 0.25, 8, 5),
    "mixed": Kind(30_000, 0.5, 12, others=((400_000, 1.0), (120_000, 0.25), (1_500_000, 1.0))),
    "greedy": Kind(200_000, 1.0, 20),
}


class BusyProgram:
    """One process. Work that leaves half of the device free is launched into two streams."""

    def __init__(self, kind: Kind, percent: int = 0, slower: float = 1.0) -> None:
        """Create the context, and the graph if there is one."""
        self._client = client = CudaClient()
        self._kind = kind
        sms = ctypes.c_int()
        client.call("cuDeviceGetAttribute", ctypes.byref(sms), 16, 0)
        self._blocks = round(sms.value * kind.part)
        streams = 1 if kind.nodes or kind.others else round(1 / kind.part)
        self._streams = [self._create("cuStreamCreate", 1) for _ in range(streams)]
        self._events = [[self._create("cuEventCreate", 2) for _ in self._streams] for _ in range(_UNDER_WAY)]
        self._kernels = [
            client.prepared(round(kernel_ns * slower), round(sms.value * part), stream)
            for kernel_ns, part in ((kind.kernel_ns, kind.part), *kind.others)
            for stream in self._streams
        ]
        self._launches: list[Callable[[], int]] = self._kernels
        if kind.nodes:
            self._launches = [self._captured(kind.nodes)]
        if percent:  # a graph has no grid: such limiters do not limit it
            limiter = GridLimiter(percent, sms.value, _THREADS_PER_SM)
            self._launches = [limiter.limited(launch, self._blocks * (not kind.nodes)) for launch in self._launches]

    def run(self, bursts: int) -> None:
        """Launch a number of bursts; 0: without end."""
        number = 0
        while not bursts or number < bursts:
            events = self._events[number % _UNDER_WAY]
            if number >= _UNDER_WAY:
                for event in events:
                    self._client.call("cuEventSynchronize", event)
            for launch in self._launches * (self._kind.launches // len(self._launches)):
                if code := launch():
                    raise CudaError("a launch", code)
            for event, stream in zip(events, self._streams, strict=True):
                self._client.call("cuEventRecord", event, stream)
            number += 1
        self._client.wait()

    def _create(self, call: str, flags: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._client.call(call, ctypes.byref(handle), flags)
        return handle

    def _captured(self, nodes: int) -> Callable[[], int]:
        client, stream = self._client, self._streams[0]
        graph, handle = ctypes.c_void_p(), ctypes.c_void_p()
        client.call("cuStreamBeginCapture_v2", stream, _CAPTURE_RELAXED)
        for _ in range(nodes):
            self._kernels[0]()
        client.call("cuStreamEndCapture", stream, ctypes.byref(graph))
        client.call("cuGraphInstantiateWithFlags", ctypes.byref(handle), graph, ctypes.c_ulonglong(0))
        launch = ctypes.CDLL("libcuda.so.1").cuGraphLaunch
        return lambda: int(launch(handle, stream))


def main(arguments: Sequence[str]) -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(prog="press")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--bursts", type=int, default=0, help="0: without end")
    parser.add_argument("--itself", type=int, default=0, help="percent of the device")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--slower", type=float, default=1.0, help="factor of kernel durations")
    options = parser.parse_args(arguments)
    for _ in range(1, options.processes):
        if not os.fork():
            break
    BusyProgram(KINDS[options.kind], options.itself, options.slower).run(options.bursts)


if __name__ == "__main__":
    main(sys.argv[1:])
