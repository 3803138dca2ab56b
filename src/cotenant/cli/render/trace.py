"""Terminal timeline of `cotenant trace --show`: one row of characters per track."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

import msgspec
from rich.console import Console
from rich.text import Text

from cotenant.trace.recording import Recording
from cotenant.trace.server_tracks import build_all_tracks
from cotenant.trace.tracks import Track

PICTURE_NS: Final = 20_000_000
COLUMNS: Final = 100
_NAME_COLUMNS: Final = 34
_LEVELS: Final = " ▁▂▃▄▅▆▇█"
_STYLES: Final = {"device": "green", "expected": "green dim", "gate": "red", "sync": "yellow", "idle": "bright_black"}


def show_tracks(console: Console, recording: Recording) -> None:
    """Print the last 20 ms with activity; the height of a character is the busy fraction of its interval."""
    end_ns = min(recording.end_ns, max(_last_ends(recording), default=recording.end_ns))
    start_ns = max(end_ns - PICTURE_NS, recording.start_ns)
    groups = build_all_tracks(msgspec.structs.replace(recording, start_ns=start_ns, end_ns=end_ns))
    if not any(track.slices for group in groups for track in group.tracks):
        console.print("nothing ran; programs under `cotenant run`, inference servers and software GPUs are recorded")
        return
    columns = max(min(COLUMNS, console.width - _NAME_COLUMNS - 1), 10)
    step_us = (end_ns - start_ns) / columns / 1000
    console.print(f"{(end_ns - start_ns) / 1e6:.1f} ms, {step_us:.0f} us per column", highlight=False)
    for group in groups:
        console.print(Text(group.name, style="bold", overflow="ellipsis", no_wrap=True))
        for track in group.tracks:
            if track.slices:
                console.print(track_text(track, start_ns, end_ns, columns), no_wrap=True, overflow="crop")


def track_text(track: Track, start_ns: int, end_ns: int, columns: int) -> Text:
    """Return one track: the number of launches per column up to 9, and the busy fraction for other categories."""
    category = track.slices[0].category
    if category == "launch":
        counts = [0] * columns
        for slice_ in track.slices:
            counts[min((slice_.start_ns - start_ns) * columns // (end_ns - start_ns), columns - 1)] += 1
        cells = "".join("·" if not count else str(count) if count <= 9 else "+" for count in counts)
    else:
        cells = "".join(_level(part) for part in _filled(track, start_ns, end_ns, columns))
    name = track.name if len(track.name) <= _NAME_COLUMNS else f"{track.name[: _NAME_COLUMNS - 1]}…"
    return Text.assemble(f"{name:{_NAME_COLUMNS}} ", (cells, _STYLES.get(category, "cyan")))


def _filled(track: Track, start_ns: int, end_ns: int, columns: int) -> list[float]:
    """Return the fraction of each column that the slices of a track cover."""
    width_ns = (end_ns - start_ns) / columns
    parts = [0.0] * columns
    for slice_ in track.slices:
        first, last = (slice_.start_ns - start_ns) / width_ns, (slice_.end_ns - start_ns) / width_ns
        for column in range(int(first), min(int(last) + 1, columns)):
            parts[column] += max(min(last, column + 1) - max(first, column), 0.0)
    return parts


def _level(part: float) -> str:
    """Return the character for a fraction; a fraction above 0 is always visible."""
    return _LEVELS[0] if part <= 0 else _LEVELS[min(max(round(part * 8), 1), 8)]


def _last_ends(recording: Recording) -> Iterable[int]:
    """Yield the last activity of each source that began before the end of the recording."""
    for device in recording.devices:
        ends = (op.end_ns for op in reversed(device.ops) if op.start_ns < recording.end_ns)
        yield from islice(ends, 1)
    for program in recording.programs:
        ends = (event.end_ns for event in reversed(program.events) if event.at_ns < recording.end_ns)
        yield from islice(ends, 1)
    for server in recording.servers:
        ends = (request.answered_ns for request in reversed(server.requests) if request.arrived_ns < recording.end_ns)
        yield from islice(ends, 1)
