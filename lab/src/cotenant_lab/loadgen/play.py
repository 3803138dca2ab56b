"""Play loads one after the other in a separate process: a line of JSON is a load, a line of JSON its result.

The load must not share an interpreter with the bench, and starting a process for each load would take longer than the
load.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterator

import msgspec

from cotenant.serve.load.connections import Endpoint, open_connections
from cotenant.serve.load.open_loop import (
    ClosedLoopSource,
    LoadGenerator,
    LoadReport,
    MeasureWindow,
    OpenLoopSource,
    RequestSource,
)
from cotenant.units.instant import Duration


class LoadPlan(msgspec.Struct, frozen=True):
    """A load on one server: at given instants of each model, or by closed-loop clients."""

    endpoint: Endpoint
    targets: tuple[tuple[str, Duration], ...]
    """Models and their objectives."""
    messages: tuple[bytes, ...]
    window: MeasureWindow
    instants_ns: tuple[tuple[Duration, ...], ...] = ()
    clients: int = 0
    """If positive, the number of closed-loop clients that replace the instants."""
    connections: int = 1024


def play(load: LoadPlan) -> LoadReport:
    """Run from the first request to the last answer."""
    source: RequestSource
    if load.clients:
        source = ClosedLoopSource(load.clients, len(load.messages), load.window.until_ns)
    else:
        source = OpenLoopSource(
            heapq.merge(*(_marked(model_instants, index) for index, model_instants in enumerate(load.instants_ns)))
        )
    wire = open_connections(load.endpoint, load.messages, load.connections)
    try:
        return LoadGenerator(wire, load.targets, load.window).run(source)
    finally:
        wire.close()


def _marked(instants: tuple[Duration, ...], model: int) -> Iterator[tuple[Duration, int]]:
    return ((at_ns, model) for at_ns in instants)


if __name__ == "__main__":
    for line in sys.stdin.buffer:
        result = play(msgspec.json.decode(line, type=LoadPlan))
        sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
        sys.stdout.buffer.flush()
