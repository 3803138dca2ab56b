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
    groups = [_server_group(server, window) for server in recording.servers]
    return [*build_tracks(recording), *(group for group in groups if group.tracks)]


def _server_group(server: ServerRecording, window: Span) -> TrackGroup:
    visible = [
        request for request in server.requests if request.answered_ns > window[0] and request.arrived_ns < window[1]
    ]
    tracks = [*_run_tracks(visible, window), *_request_tracks(visible, window)]
    return TrackGroup(f"serve ({server.pid})", tracks, [_waiting(visible, window)], server.pid)


def _run_tracks(requests: list[ServedRequest], window: Span) -> Iterator[Track]:
    """Yield one track per core, or as many tracks as runs overlapped."""
    runs: dict[int, list[ServedRequest]] = {}
    slices_by_track: dict[str, list[Slice]] = {}
    for request in requests:
        if request.run:
            runs.setdefault(request.run, []).append(request)
        elif request.ended_ns:
            slices_by_track.setdefault("runs of the front end", []).append(_run_slice([request]))
    for batch in runs.values():
        core = batch[0].core
        slices_by_track.setdefault("runs" if core < 0 else f"runs, core {core}", []).append(_run_slice(batch))
    for name, slices in sorted(slices_by_track.items()):
        for number, row in enumerate(stacked(sorted(slices, key=_by_start))):
            track = list(_clipped(row, window))
            if track:
                yield Track(name if number == 0 else f"{name}, {number + 1}", track)


def _run_slice(batch: list[ServedRequest]) -> Slice:
    first = batch[0]
    rows = sum(request.rows for request in batch)
    facts: Facts = (("run", first.run), ("requests", len(batch)), ("rows", rows), ("units", first.units))
    return Slice(f"{first.model} x{rows}", first.began_ns, max(first.ended_ns, first.began_ns), "run", facts)


def _request_tracks(requests: list[ServedRequest], window: Span) -> Iterator[Track]:
    rows: list[list[Slice]] = []
    free: list[tuple[int, int]] = []  # the instant at which each track is free again
    omitted = 0
    for request in sorted(requests, key=lambda request: request.arrived_ns):
        if free and free[0][0] <= request.arrived_ns:
            number = heapq.heappop(free)[1]
        elif len(rows) < _REQUEST_TRACKS:
            number = len(rows)
            rows.append([])
        else:
            omitted += 1
            continue
        rows[number] += _clipped(_steps(request), window)
        heapq.heappush(free, (request.answered_ns, number))
    for number, row in enumerate(rows, 1):
        beyond = f" (and {omitted} more without a track)" if omitted and number == len(rows) else ""
        if row:
            yield Track(f"requests, {number}{beyond}", row)


def _steps(request: ServedRequest) -> Iterator[Slice]:
    facts: Facts = (
        ("request", request.number),
        ("run", request.run),
        ("rows", request.rows),
        ("end", request.end.name.lower()),
    )
    last_ns = request.answered_ns
    steps = [("queue", request.chosen_ns), ("batch", request.began_ns), ("run", request.ended_ns), ("answer", last_ns)]
    at_ns = request.arrived_ns
    if not request.ended_ns:  # it was never run
        steps = [(request.end.name.lower(), last_ns)]
    elif request.end is RequestEnd.CANCELLED:
        steps = [*steps[:3], ("cancelled", last_ns)]
    for step, until_ns in steps:
        end_ns = min(max(until_ns, at_ns), last_ns)
        if end_ns > at_ns:
            yield Slice(f"{request.model}: {step}", at_ns, end_ns, _CATEGORY, facts)
        at_ns = end_ns


def _waiting(requests: list[ServedRequest], window: Span) -> CounterTrack:
    changes: dict[int, int] = {}
    for request in requests:
        start_ns, end_ns = max(request.arrived_ns, window[0]), min(request.chosen_ns or request.answered_ns, window[1])
        if start_ns < end_ns:
            changes[start_ns] = changes.get(start_ns, 0) + 1
            changes[end_ns] = changes.get(end_ns, 0) - 1
    points, waiting = [], 0
    for at_ns, change in sorted(changes.items()):
        waiting += change
        points.append((at_ns, waiting))
    return CounterTrack("waiting requests", points)


def _clipped(slices: Iterable[Slice], window: Span) -> Iterator[Slice]:
    for slice_ in slices:
        start_ns, end_ns = max(slice_.start_ns, window[0]), min(slice_.end_ns, window[1])
        if start_ns < end_ns:
            yield Slice(slice_.name, start_ns, end_ns, slice_.category, slice_.facts)


def _by_start(slice_: Slice) -> Span:
    return slice_.start_ns, slice_.end_ns
