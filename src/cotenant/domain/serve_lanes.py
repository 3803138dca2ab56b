"""How are the requests of a server of models laid out? As lanes beside those of devices and programs.

A request is in one lane from its arrival to its answer: queue, batch, run, answer. As many lanes as it takes, up to a
bound; what is beyond is counted in the name of the last.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Final

from cotenant.domain.lanes import Facts, Group, Lane, Slice, Span, Track, lay_out, stacked
from cotenant.domain.trace import End, Recording, Served, ServedRequest

_REQUEST_LANES: Final = 64
_CATEGORY: Final = "request"


def lay_out_all(recording: Recording) -> list[Group]:
    """Devices, then programs, then servers."""
    window = recording.start_ns, recording.end_ns
    groups = [_server_group(one, window) for one in recording.servers]
    return [*lay_out(recording), *(group for group in groups if group.lanes)]


def _server_group(server: Served, window: Span) -> Group:
    seen = [one for one in server.requests if one.answered_ns > window[0] and one.arrived_ns < window[1]]
    lanes = [*_run_lanes(seen, window), *_request_lanes(seen, window)]
    return Group(f"serve ({server.pid})", lanes, [_waiting(seen, window)], server.pid)


def _run_lanes(requests: list[ServedRequest], window: Span) -> Iterator[Lane]:
    """One lane for each core, or for as many runs as went on at once."""
    runs: dict[int, list[ServedRequest]] = {}
    places: dict[str, list[Slice]] = {}
    for one in requests:
        if one.run:
            runs.setdefault(one.run, []).append(one)
        elif one.ended_ns:
            places.setdefault("runs of the front end", []).append(_run_slice([one]))
    for together in runs.values():
        core = together[0].core
        places.setdefault("runs" if core < 0 else f"runs, core {core}", []).append(_run_slice(together))
    for name, slices in sorted(places.items()):
        for number, row in enumerate(stacked(sorted(slices, key=_by_start))):
            lane = list(_clipped(row, window))
            if lane:
                yield Lane(name if number == 0 else f"{name}, {number + 1}", lane)


def _run_slice(together: list[ServedRequest]) -> Slice:
    first = together[0]
    rows = sum(one.rows for one in together)
    facts: Facts = (("run", first.run), ("requests", len(together)), ("rows", rows), ("units", first.units))
    return Slice(f"{first.model} x{rows}", first.began_ns, max(first.ended_ns, first.began_ns), "run", facts)


def _request_lanes(requests: list[ServedRequest], window: Span) -> Iterator[Lane]:
    rows: list[list[Slice]] = []
    free: list[tuple[int, int]] = []  # when each lane is free again
    left_out = 0
    for one in sorted(requests, key=lambda one: one.arrived_ns):
        if free and free[0][0] <= one.arrived_ns:
            number = heapq.heappop(free)[1]
        elif len(rows) < _REQUEST_LANES:
            number = len(rows)
            rows.append([])
        else:
            left_out += 1
            continue
        rows[number] += _clipped(_steps(one), window)
        heapq.heappush(free, (one.answered_ns, number))
    for number, row in enumerate(rows, 1):
        beyond = f" (and {left_out} that found no lane)" if left_out and number == len(rows) else ""
        if row:
            yield Lane(f"requests, {number}{beyond}", row)


def _steps(one: ServedRequest) -> Iterator[Slice]:
    facts: Facts = (("request", one.number), ("run", one.run), ("rows", one.rows), ("end", one.end.name.lower()))
    last_ns = one.answered_ns
    marks = [("queue", one.chosen_ns), ("batch", one.began_ns), ("run", one.ended_ns), ("answer", last_ns)]
    at_ns = one.arrived_ns
    if not one.ended_ns:  # it was never run
        marks = [(one.end.name.lower(), last_ns)]
    elif one.end is End.CANCELLED:
        marks = [*marks[:3], ("cancelled", last_ns)]
    for what, until_ns in marks:
        end_ns = min(max(until_ns, at_ns), last_ns)
        if end_ns > at_ns:
            yield Slice(f"{one.model}: {what}", at_ns, end_ns, _CATEGORY, facts)
        at_ns = end_ns


def _waiting(requests: list[ServedRequest], window: Span) -> Track:
    changes: dict[int, int] = {}
    for one in requests:
        start_ns, end_ns = max(one.arrived_ns, window[0]), min(one.chosen_ns or one.answered_ns, window[1])
        if start_ns < end_ns:
            changes[start_ns] = changes.get(start_ns, 0) + 1
            changes[end_ns] = changes.get(end_ns, 0) - 1
    points, waiting = [], 0
    for at_ns, change in sorted(changes.items()):
        waiting += change
        points.append((at_ns, waiting))
    return Track("requests that wait", points)


def _clipped(slices: Iterable[Slice], window: Span) -> Iterator[Slice]:
    for one in slices:
        start_ns, end_ns = max(one.start_ns, window[0]), min(one.end_ns, window[1])
        if start_ns < end_ns:
            yield Slice(one.name, start_ns, end_ns, one.category, one.facts)


def _by_start(one: Slice) -> Span:
    return one.start_ns, one.end_ns
