"""How does a timeline look in a terminal? Lanes of characters, the last moments of a recording."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

import msgspec
from rich.console import Console
from rich.text import Text

from cotenant.domain.lanes import Lane
from cotenant.domain.serve_lanes import lay_out_all
from cotenant.domain.trace import Recording

PICTURE_NS: Final = 20_000_000
COLUMNS: Final = 100
_NAME_COLUMNS: Final = 34
_LEVELS: Final = " ▁▂▃▄▅▆▇█"
_STYLES: Final = {"device": "green", "expected": "green dim", "gate": "red", "sync": "yellow", "idle": "bright_black"}


def show_picture(console: Console, recording: Recording) -> None:
    """The last 20 ms in which anything happened; how full a character is says for how much of its time."""
    end_ns = min(recording.end_ns, max(_ends(recording), default=recording.end_ns))
    start_ns = max(end_ns - PICTURE_NS, recording.start_ns)
    groups = lay_out_all(msgspec.structs.replace(recording, start_ns=start_ns, end_ns=end_ns))
    if not any(lane.slices for group in groups for lane in group.lanes):
        console.print("Nothing ran. Programs under `cotenant run`, servers and software GPUs show here.")
        return
    columns = max(min(COLUMNS, console.width - _NAME_COLUMNS - 1), 10)
    step_us = (end_ns - start_ns) / columns / 1000
    console.print(f"{(end_ns - start_ns) / 1e6:.1f} ms, a column is {step_us:.0f} us", highlight=False)
    for group in groups:
        console.print(Text(group.name, style="bold", overflow="ellipsis", no_wrap=True))
        for lane in group.lanes:
            if lane.slices:
                console.print(lane_text(lane, start_ns, end_ns, columns), no_wrap=True, overflow="crop")


def lane_text(lane: Lane, start_ns: int, end_ns: int, columns: int) -> Text:
    """One lane: launches as how many, up to 9 a column, all else as how much of the column it filled."""
    category = lane.slices[0].category
    if category == "launch":
        counts = [0] * columns
        for one in lane.slices:
            counts[min((one.start_ns - start_ns) * columns // (end_ns - start_ns), columns - 1)] += 1
        drawn = "".join("·" if not count else str(count) if count <= 9 else "+" for count in counts)
    else:
        drawn = "".join(_level(part) for part in _filled(lane, start_ns, end_ns, columns))
    name = lane.name if len(lane.name) <= _NAME_COLUMNS else f"{lane.name[: _NAME_COLUMNS - 1]}…"
    return Text.assemble(f"{name:{_NAME_COLUMNS}} ", (drawn, _STYLES.get(category, "cyan")))


def _filled(lane: Lane, start_ns: int, end_ns: int, columns: int) -> list[float]:
    """What part of each column the slices of a lane cover."""
    width_ns = (end_ns - start_ns) / columns
    parts = [0.0] * columns
    for one in lane.slices:
        first, last = (one.start_ns - start_ns) / width_ns, (one.end_ns - start_ns) / width_ns
        for column in range(int(first), min(int(last) + 1, columns)):
            parts[column] += max(min(last, column + 1) - max(first, column), 0.0)
    return parts


def _level(part: float) -> str:
    """What is there at all is seen."""
    return _LEVELS[0] if part <= 0 else _LEVELS[min(max(round(part * 8), 1), 8)]


def _ends(recording: Recording) -> Iterable[int]:
    """When each was last seen to do anything; what began while it was looked at is not part of the recording."""
    for device in recording.devices:
        began = (ran.end_ns for ran in reversed(device.ran) if ran.start_ns < recording.end_ns)
        yield from islice(began, 1)
    for program in recording.programs:
        began = (one.end_ns for one in reversed(program.asked) if one.at_ns < recording.end_ns)
        yield from islice(began, 1)
    for server in recording.servers:
        began = (one.answered_ns for one in reversed(server.requests) if one.arrived_ns < recording.end_ns)
        yield from islice(began, 1)
