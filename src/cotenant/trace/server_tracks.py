"""Lay out the requests of a model server as tracks.

A request is on one track from its arrival to its response, as the slices queue, batch, run and answer. There are as
many tracks as requests overlap, up to a limit; the name of the last track counts the requests beyond it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Final

from cotenant.trace.recording import Recording, RequestEnd, ServedRequest, ServerRecording
from cotenant.trace.tracks import CounterTrack, Facts, Slice, Span, Track, TrackGroup, build_tracks, stacked

_REQUEST_TRACKS: Final = 64
_CATEGORY: Final = "request"


def build_all_tracks(recording: Recording) -> list[TrackGroup]:
    """Return the tracks of devices, then of programs, then of servers."""
    window = recording.start_ns, recording.end_ns
    groups = [_server_group(one, window) for one in recording.servers]
    return [*build_tracks(recording), *(group for group in groups if group.tracks)]


def _server_group(server: ServerRecording, window: Span) -> TrackGroup:
    visible = [one for one in server.requests if one.answered_ns > window[0] and one.arrived_ns < window[1]]
    tracks = [*_run_tracks(visible, window), *_request_tracks(visible, window)]
    return TrackGroup(f"serve ({server.pid})", tracks, [_waiting(visible, window)], server.pid)


def _run_tracks(requests: list[ServedRequest], window: Span) -> Iterator[Track]:
    """Yield one track per core, or as many tracks as runs overlapped."""
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
            track = list(_clipped(row, window))
            if track:
                yield Track(name if number == 0 else f"{name}, {number + 1}", track)


def _run_slice(together: list[ServedRequest]) -> Slice:
    first = together[0]
    rows = sum(one.rows for one in together)
    facts: Facts = (("run", first.run), ("requests", len(together)), ("rows", rows), ("units", first.units))
    return Slice(f"{first.model} x{rows}", first.began_ns, max(first.ended_ns, first.began_ns), "run", facts)


def _request_tracks(requests: list[ServedRequest], window: Span) -> Iterator[Track]:
    rows: list[list[Slice]] = []
    free: list[tuple[int, int]] = []  # the instant at which each track is free again
    omitted = 0
    for one in sorted(requests, key=lambda one: one.arrived_ns):
        if free and free[0][0] <= one.arrived_ns:
            number = heapq.heappop(free)[1]
        elif len(rows) < _REQUEST_TRACKS:
            number = len(rows)
            rows.append([])
        else:
            omitted += 1
            continue
        rows[number] += _clipped(_steps(one), window)
        heapq.heappush(free, (one.answered_ns, number))
    for number, row in enumerate(rows, 1):
        beyond = f" (and {omitted} more without a track)" if omitted and number == len(rows) else ""
        if row:
            yield Track(f"requests, {number}{beyond}", row)


def _steps(one: ServedRequest) -> Iterator[Slice]:
    facts: Facts = (("request", one.number), ("run", one.run), ("rows", one.rows), ("end", one.end.name.lower()))
    last_ns = one.answered_ns
    steps = [("queue", one.chosen_ns), ("batch", one.began_ns), ("run", one.ended_ns), ("answer", last_ns)]
    at_ns = one.arrived_ns
    if not one.ended_ns:  # it was never run
        steps = [(one.end.name.lower(), last_ns)]
    elif one.end is RequestEnd.CANCELLED:
        steps = [*steps[:3], ("cancelled", last_ns)]
    for what, until_ns in steps:
        end_ns = min(max(until_ns, at_ns), last_ns)
        if end_ns > at_ns:
            yield Slice(f"{one.model}: {what}", at_ns, end_ns, _CATEGORY, facts)
        at_ns = end_ns


def _waiting(requests: list[ServedRequest], window: Span) -> CounterTrack:
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
    return CounterTrack("waiting requests", points)


def _clipped(slices: Iterable[Slice], window: Span) -> Iterator[Slice]:
    for one in slices:
        start_ns, end_ns = max(one.start_ns, window[0]), min(one.end_ns, window[1])
        if start_ns < end_ns:
            yield Slice(one.name, start_ns, end_ns, one.category, one.facts)


def _by_start(one: Slice) -> Span:
    return one.start_ns, one.end_ns
