"""Write tracks in Google's Trace Event Format, for Perfetto and chrome://tracing.

The format is described in "Trace Event Format" (Google, chromium project); instants are microseconds, here with three
decimals, from the start of the recording.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from cotenant.trace.tracks import CounterTrack, Slice, Track, TrackGroup

_FIRST_DEVICE: Final = 10_000_000
"""Devices are shown as processes; their numbers are above all process numbers of Linux."""
_CHUNK_BYTES: Final = 1 << 16
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


def trace_events(groups: Iterable[TrackGroup], start_ns: int, about: dict[str, int | str]) -> Iterator[bytes]:
    """Yield the file in chunks; `about` becomes its otherData."""
    chunk = [b'{"displayTimeUnit":"ns","otherData":' + msgspec.json.encode(about) + b',"traceEvents":[\n']
    size = len(chunk[0])
    separator = ""
    for event in _events(groups, start_ns):
        chunk.append(f"{separator}{event}".encode())
        size += len(chunk[-1])
        separator = ",\n"
        if size >= _CHUNK_BYTES:
            yield b"".join(chunk)
            chunk, size = [], 0
    chunk.append(b"\n]}\n")
    yield b"".join(chunk)


def _events(groups: Iterable[TrackGroup], start_ns: int) -> Iterator[str]:
    track_number = 0
    for number, group in enumerate(groups):
        pid = group.pid or _FIRST_DEVICE + number
        yield _meta("process_name", pid, 0, "name", _text(group.name))
        yield _meta("process_sort_index", pid, 0, "sort_index", str(number))
        for counter in group.counters:
            yield from _counts(counter, pid, start_ns)
        for track in group.tracks:
            track_number += 1  # unique over all groups: some viewers join threads of equal number
            yield _meta("thread_name", pid, track_number, "name", _text(track.name))
            yield _meta("thread_sort_index", pid, track_number, "sort_index", str(track_number))
            yield from _slices(track, f'"pid":{pid},"tid":{track_number}', start_ns)


def _meta(name: str, pid: int, tid: int, field: str, value: str) -> str:
    return f'{{"ph":"M","name":"{name}","pid":{pid},"tid":{tid},"args":{{"{field}":{value}}}}}'


def _counts(counter: CounterTrack, pid: int, start_ns: int) -> Iterator[str]:
    name = _text(counter.name)
    for at_ns, value in counter.points:
        yield f'{{"ph":"C","name":{name},"pid":{pid},"tid":0,"ts":{_us(at_ns - start_ns)},"args":{{"value":{value}}}}}'


def _slices(track: Track, ids: str, start_ns: int) -> Iterator[str]:
    names: dict[str, str] = {}
    for slice_ in track.slices:
        name = names.get(slice_.name)
        if name is None:
            name = names[slice_.name] = _text(slice_.name)
        ts = _us(slice_.start_ns - start_ns)
        fields = _optional_fields(slice_)
        yield (
            f'{{"ph":"X","name":{name},"cat":"{slice_.category}",{ids},"ts":{ts},'
            f'"dur":{_us(slice_.end_ns - slice_.start_ns)}{fields}}}'
        )
        if slice_.flow:
            arrow = '"ph":"f","bp":"e"' if track.flows_end else '"ph":"s"'
            yield f'{{{arrow},"name":"launch","cat":"flow","id":{slice_.flow},{ids},"ts":{ts}}}'


def _optional_fields(slice_: Slice) -> str:
    colour = _COLOURS.get(slice_.name)
    text = f',"cname":"{colour}"' if colour else ""
    if slice_.facts:
        facts = ",".join(f'"{key}":{_text(value) if isinstance(value, str) else value}' for key, value in slice_.facts)
        text += f',"args":{{{facts}}}'
    return text


def _text(name: str) -> str:
    """Return the name as JSON text; lone surrogates are replaced."""
    return msgspec.json.encode(name.encode("utf-8", "replace").decode()).decode()


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"
