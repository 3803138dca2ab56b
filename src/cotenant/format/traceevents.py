"""How are lanes written for Perfetto and chrome://tracing? Google's Trace Event Format, a piece at a time.

The format is described in "Trace Event Format" (Google, chromium project); instants are microseconds, here with three
decimals, from the start of the recording.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from cotenant.domain.lanes import Group, Lane, Slice, Track

_FIRST_DEVICE: Final = 10_000_000
"""Devices are shown as processes, under numbers that no process of Linux has."""
_PIECE_BYTES: Final = 1 << 16
# Names that chrome://tracing has colours for; Perfetto colours by name on its own.
_COLOURS: Final = {
    "gate: busy": "bad",
    "gate: tight": "terrible",
    "gate: due": "yellow",
    "gate: bound": "olive",
    "gate: other": "grey",
    "gate: paused": "black",
    "gate: debt": "thread_state_iowait",
    "idle": "white",
}


def trace_events(groups: Iterable[Group], start_ns: int, about: dict[str, int | str]) -> Iterator[bytes]:
    """The file's bytes, in pieces; `about` is what a reader finds under otherData."""
    held = [b'{"displayTimeUnit":"ns","otherData":' + msgspec.json.encode(about) + b',"traceEvents":[\n']
    size = len(held[0])
    separator = ""
    for event in _events(groups, start_ns):
        held.append(f"{separator}{event}".encode())
        size += len(held[-1])
        separator = ",\n"
        if size >= _PIECE_BYTES:
            yield b"".join(held)
            held, size = [], 0
    held.append(b"\n]}\n")
    yield b"".join(held)


def _events(groups: Iterable[Group], start_ns: int) -> Iterator[str]:
    lane_number = 0
    for number, group in enumerate(groups):
        pid = group.pid or _FIRST_DEVICE + number
        yield _meta("process_name", pid, 0, "name", _text(group.name))
        yield _meta("process_sort_index", pid, 0, "sort_index", str(number))
        for track in group.tracks:
            yield from _counts(track, pid, start_ns)
        for lane in group.lanes:
            lane_number += 1  # over all groups: some viewers take equal numbers for one thread
            yield _meta("thread_name", pid, lane_number, "name", _text(lane.name))
            yield _meta("thread_sort_index", pid, lane_number, "sort_index", str(lane_number))
            yield from _slices(lane, f'"pid":{pid},"tid":{lane_number}', start_ns)


def _meta(what: str, pid: int, tid: int, field: str, value: str) -> str:
    return f'{{"ph":"M","name":"{what}","pid":{pid},"tid":{tid},"args":{{"{field}":{value}}}}}'


def _counts(track: Track, pid: int, start_ns: int) -> Iterator[str]:
    name = _text(track.name)
    for at_ns, value in track.points:
        yield f'{{"ph":"C","name":{name},"pid":{pid},"tid":0,"ts":{_us(at_ns - start_ns)},"args":{{"value":{value}}}}}'


def _slices(lane: Lane, place: str, start_ns: int) -> Iterator[str]:
    names: dict[str, str] = {}
    for one in lane.slices:
        name = names.get(one.name)
        if name is None:
            name = names[one.name] = _text(one.name)
        ts = _us(one.start_ns - start_ns)
        rest = _rest(one)
        yield (
            f'{{"ph":"X","name":{name},"cat":"{one.category}",{place},"ts":{ts},'
            f'"dur":{_us(one.end_ns - one.start_ns)}{rest}}}'
        )
        if one.flow:
            arrow = '"ph":"f","bp":"e"' if lane.flows_end else '"ph":"s"'
            yield f'{{{arrow},"name":"launch","cat":"flow","id":{one.flow},{place},"ts":{ts}}}'


def _rest(one: Slice) -> str:
    colour = _COLOURS.get(one.name)
    text = f',"cname":"{colour}"' if colour else ""
    if one.facts:
        facts = ",".join(f'"{key}":{_text(value) if isinstance(value, str) else value}' for key, value in one.facts)
        text += f',"args":{{{facts}}}'
    return text


def _text(name: str) -> str:
    """As JSON; what is half of a surrogate pair is nothing that could be written."""
    return msgspec.json.encode(name.encode("utf-8", "replace").decode()).decode()


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"
