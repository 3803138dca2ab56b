"""Who always wants more of the device? A program that keeps it fed with one kind of work.

`python -m cotenant.live.soak.press KIND`: burst after burst, two of them under way: more than the gate lets anybody
have on the device at once, so that a host which is late leaves no hole. `--itself` is a percentage that it holds itself
to by the size of its grids, as the baseline does.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from cotenant.live.soak.client import CudaClient, CudaError
from cotenant.live.soak.gridlimit import GridLimiter

_CAPTURE_RELAXED: Final = 2
_UNDER_WAY: Final = 2
_THREADS_PER_SM: Final = 2048


class Kind(NamedTuple):
    """What a burst is made of."""

    kernel_ns: int
    part: float
    """Of the SMs, how many have a block."""
    launches: int
    nodes: int = 0
    """Kernels in a graph; 0: no graph."""
    others: tuple[tuple[int, float], ...] = ()
    """Kernels of other lengths and parts, in turns with it."""


KINDS: Final = {
    "small": Kind(50_000, 0.5, 160),
    "large": Kind(2_000_000, 1.0, 2),
    "graph": Kind(100_000, 1.0, 8, 5),
    "narrow": Kind(100_000, 0.25, 8, 5),
    "mixed": Kind(30_000, 0.5, 12, others=((400_000, 1.0), (120_000, 0.25), (1_500_000, 1.0))),
    "greedy": Kind(200_000, 1.0, 20),
}


class Press:
    """One process of it. Work that leaves half of the device free goes into two streams at once."""

    def __init__(self, kind: Kind, percent: int = 0, slower: float = 1.0) -> None:
        """Make the context, and the graph if there is one."""
        self._client = client = CudaClient()
        self._kind = kind
        sms = ctypes.c_int()
        client.call("cuDeviceGetAttribute", ctypes.byref(sms), 16, 0)
        self._blocks = round(sms.value * kind.part)
        beside = 1 if kind.nodes or kind.others else round(1 / kind.part)
        self._streams = [self._made("cuStreamCreate", 1) for _ in range(beside)]
        self._marks = [[self._made("cuEventCreate", 2) for _ in self._streams] for _ in range(_UNDER_WAY)]
        self._kernels = [
            client.prepared(round(kernel_ns * slower), round(sms.value * part), stream)
            for kernel_ns, part in ((kind.kernel_ns, kind.part), *kind.others)
            for stream in self._streams
        ]
        self._launches: list[Callable[[], int]] = self._kernels
        if kind.nodes:
            self._launches = [self._captured(kind.nodes)]
        if percent:  # a graph has no grid: those who limit so let it pass
            limiter = GridLimiter(percent, sms.value, _THREADS_PER_SM)
            self._launches = [limiter.limited(launch, self._blocks * (not kind.nodes)) for launch in self._launches]

    def press(self, bursts: int) -> None:
        """So many bursts; 0: without end."""
        number = 0
        while not bursts or number < bursts:
            marks = self._marks[number % _UNDER_WAY]
            if number >= _UNDER_WAY:
                for mark in marks:
                    self._client.call("cuEventSynchronize", mark)
            for launch in self._launches * (self._kind.launches // len(self._launches)):
                if code := launch():
                    raise CudaError("a launch", code)
            for mark, stream in zip(marks, self._streams, strict=True):
                self._client.call("cuEventRecord", mark, stream)
            number += 1
        self._client.wait()

    def _made(self, call: str, flags: int) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self._client.call(call, ctypes.byref(made), flags)
        return made

    def _captured(self, nodes: int) -> Callable[[], int]:
        client, stream = self._client, self._streams[0]
        graph, made = ctypes.c_void_p(), ctypes.c_void_p()
        client.call("cuStreamBeginCapture_v2", stream, _CAPTURE_RELAXED)
        for _ in range(nodes):
            self._kernels[0]()
        client.call("cuStreamEndCapture", stream, ctypes.byref(graph))
        client.call("cuGraphInstantiateWithFlags", ctypes.byref(made), graph, ctypes.c_ulonglong(0))
        launch = ctypes.CDLL("libcuda.so.1").cuGraphLaunch
        return lambda: int(launch(made, stream))


def main(arguments: Sequence[str]) -> None:
    """As the module's first lines say."""
    parser = argparse.ArgumentParser(prog="press")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--bursts", type=int, default=0, help="0: without end")
    parser.add_argument("--itself", type=int, default=0, help="percent of the device")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--slower", type=float, default=1.0, help="kernels take so many times as long")
    options = parser.parse_args(arguments)
    for _ in range(1, options.processes):
        if not os.fork():
            break
    Press(KINDS[options.kind], options.itself, options.slower).press(options.bursts)


if __name__ == "__main__":
    main(sys.argv[1:])
