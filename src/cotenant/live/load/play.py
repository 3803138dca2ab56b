"""How is one load after the other played from a process of its own? A line of JSON says what, a line says how it went.

A program of its own: the load must not share an interpreter with whoever watches, and starting one for each load would
take longer than the load.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterator

import msgspec

from cotenant.domain.instant import Duration
from cotenant.live.load.channel import Endpoint, open_wire
from cotenant.live.load.open import ClosedSource, Generator, Loaded, OpenSource, Source, Terms


class Played(msgspec.Struct, frozen=True):
    """A load on one server: at instants of each model, or by clients who wait."""

    endpoint: Endpoint
    targets: tuple[tuple[str, Duration], ...]
    """Models and their objectives."""
    messages: tuple[bytes, ...]
    terms: Terms
    instants_ns: tuple[tuple[Duration, ...], ...] = ()
    clients: int = 0
    """Above zero: so many that wait for answers, in place of the instants."""
    connections: int = 1024


def play(load: Played) -> Loaded:
    """From the first request to the last answer."""
    source: Source
    if load.clients:
        source = ClosedSource(load.clients, len(load.messages), load.terms.until_ns)
    else:
        source = OpenSource(heapq.merge(*(_marked(one, place) for place, one in enumerate(load.instants_ns))))
    wire = open_wire(load.endpoint, load.messages, load.connections)
    try:
        return Generator(wire, load.targets, load.terms).run(source)
    finally:
        wire.close()


def _marked(instants: tuple[Duration, ...], place: int) -> Iterator[tuple[Duration, int]]:
    return ((at_ns, place) for at_ns in instants)


if __name__ == "__main__":
    for line in sys.stdin.buffer:
        found = play(msgspec.json.decode(line, type=Played))
        sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
        sys.stdout.buffer.flush()
