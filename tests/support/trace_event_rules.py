"""The rules of the Trace Event Format, checked one by one."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec


class Event(msgspec.Struct, forbid_unknown_fields=True):
    """An event as cotenant writes it; other fields are rejected."""

    ph: str
    name: str
    pid: int
    tid: int
    ts: Decimal = Decimal(-1)
    dur: Decimal = Decimal(-1)
    cat: str = ""
    cname: str = ""
    bp: str = ""
    id: int = 0
    args: dict[str, Any] = {}


class Trace(msgspec.Struct, forbid_unknown_fields=True):
    """The object form of the format."""

    displayTimeUnit: str  # noqa: N815  the format's own name
    otherData: dict[str, Any]  # noqa: N815
    traceEvents: list[Event]  # noqa: N815


def check(text: bytes) -> Trace:
    """Check every rule and return the trace."""
    trace = msgspec.json.decode(text, type=Trace)
    tracks: dict[tuple[int, int], list[Event]] = {}
    flows: dict[int, list[Event]] = {}
    named: set[tuple[str, int, int]] = set()
    counts: dict[tuple[int, str], Decimal] = {}
    for event in trace.traceEvents:
        if event.ph == "M":
            key = (event.name, event.pid, event.tid)
            assert key not in named, f"{key} is defined twice"
            named.add(key)
        elif event.ph == "X":
            assert event.ts >= 0, event
            assert event.dur >= 0, event
            tracks.setdefault((event.pid, event.tid), []).append(event)
        elif event.ph == "C":
            assert isinstance(event.args["value"], int), event
            assert counts.get((event.pid, event.name), Decimal(-1)) < event.ts, event
            counts[event.pid, event.name] = event.ts
        else:
            assert event.ph in ("s", "f"), event
            assert (event.bp == "e") == (event.ph == "f"), event
            flows.setdefault(event.id, []).append(event)
    for (pid, tid), slices in tracks.items():
        assert ("process_name", pid, 0) in named, pid
        assert ("thread_name", pid, tid) in named, (pid, tid)
        _check_track(slices)
    tids = [tid for name, _, tid in named if name == "thread_name"]
    assert len(tids) == len(set(tids)), "a track's number is used twice"
    for number, ends in flows.items():
        assert sorted(event.ph for event in ends) == ["f", "s"], f"flow {number}: {ends}"
        for end in ends:
            assert any(event.ts == end.ts for event in tracks[end.pid, end.tid]), f"{end} begins in no slice"
    return trace


def _check_track(slices: list[Event]) -> None:
    end = Decimal(0)
    for event in slices:
        assert event.ts >= end, f"{event} begins before {end}"
        end = event.ts + event.dur


def tracks_of(trace: Trace) -> dict[str, list[Event]]:
    """Return the slices of each track by the names of its group and of itself."""
    groups = {event.pid: event.args["name"] for event in trace.traceEvents if event.name == "process_name"}
    names = {
        (event.pid, event.tid): f"{groups[event.pid]} | {event.args['name']}"
        for event in trace.traceEvents
        if event.name == "thread_name"
    }
    tracks: dict[str, list[Event]] = {name: [] for name in names.values()}
    for event in trace.traceEvents:
        if event.ph == "X":
            tracks[names[event.pid, event.tid]].append(event)
    return tracks


def busy_ns(trace: Trace, tracks: list[str]) -> int:
    """Return the time covered by slices of these tracks, without copies over the bus and host functions."""
    excluded = ("copy HtoD", "copy DtoH", "host function")
    slices = tracks_of(trace)
    spans = sorted(
        (event.ts, event.ts + event.dur)
        for track in tracks
        for event in slices[track]
        if not event.name.startswith(excluded)
    )
    total = until = Decimal(0)
    for start, end in spans:
        total += max(end - max(start, until), Decimal(0))
        until = max(until, end)
    return int(total * 1000)
