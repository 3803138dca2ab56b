"""How is a load that changes drawn? What was asked, how long it took, and who had how much, over one axis of time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Final

import msgspec

from cotenant.apps.report.draw import svg, ticks
from cotenant.apps.show_profile import duration

_WIDTH: Final = 900
_LEFT: Final = 60
_RIGHT: Final = 20
_PANEL: Final = 120
_GAP: Final = 34
_BIN_NS: Final = 250_000_000
"""The load is drawn as requests within so long."""
_SECOND_NS: Final = 1_000_000_000


class DayRun(msgspec.Struct, frozen=True, kw_only=True):
    """The same requests under one way to share."""

    name: str
    number: int
    """Of the act whose colour it has."""
    requests: list[tuple[int, int]]
    """When each was due, from the beginning on, and how long it took; nanoseconds."""
    shares: list[tuple[int, int]] = []
    """From when on which part of the device online work kept, in millionths; empty: nobody kept any for it."""
    paces: list[tuple[int, int, float]]
    """From when to when, and the training job's speed of that alone."""
    attained: float
    """Of the requests, the part within the objective."""
    p99_ns: int
    training: float
    """Over all of it."""


class Day(msgspec.Struct, frozen=True, kw_only=True):
    """A load that changes, and how it fared."""

    slo_ns: int
    span_ns: int
    parts: list[tuple[int, str]]
    """From when on the load is what."""
    runs: list[DayRun]


def day_drawing(day: Day) -> str:
    """Four panels: requests a second, latencies, the online share, the training job's speed."""

    def x_of(at_ns: float) -> float:
        return _LEFT + min(max(at_ns / day.span_ns, 0.0), 1.0) * (_WIDTH - _LEFT - _RIGHT)

    panels: tuple[tuple[str, Callable[[Day, Callable[[float], float], float], Iterable[str]]], ...] = (
        ("requests a second", _load),
        (f"latency of each request; the line: the objective, {duration(day.slo_ns)}", _latencies),
        ("what online work keeps of the device, as the node sets it", _shares),
        ("training, of its speed alone", _paces),
    )
    parts = []
    for place, (title, draw) in enumerate(panels):
        top = 24 + place * (_PANEL + _GAP)
        parts.append(f"<text x={_LEFT} y={top - 6:.1f}>{escape(title)}</text>")
        parts.append(f"<line class=grid x1={_LEFT} x2={_WIDTH - _RIGHT} y1={top + _PANEL} y2={top + _PANEL} />")
        parts += [
            f"<line class=grid x1={x_of(at_ns):.1f} x2={x_of(at_ns):.1f} y1={top} y2={top + _PANEL} />"
            for at_ns, _ in day.parts[1:]
        ]
        parts += draw(day, x_of, top)
    height = 24 + len(panels) * (_PANEL + _GAP)
    for second in range(0, day.span_ns // _SECOND_NS + 1, 2):
        x = x_of(second * _SECOND_NS)
        parts.append(f"<text x={x:.1f} y={height - 12} text-anchor=middle>{second} s</text>")
    return svg(height, parts, "a load that changes")


def _y_of(top: float, part: float) -> float:
    return top + _PANEL * (1 - min(max(part, 0.0), 1.0))


def _label(text: str, y: float) -> str:
    return f"<text x={_LEFT - 6} y={y + 4:.1f} text-anchor=end>{escape(text)}</text>"


def _load(day: Day, x_of: Callable[[float], float], top: float) -> Iterable[str]:
    bins = [0] * (day.span_ns // _BIN_NS + 1)
    for due_ns, _ in day.runs[0].requests:
        bins[min(due_ns // _BIN_NS, len(bins) - 1)] += 1
    most = max(*bins, 1)
    for place, count in enumerate(bins):
        x, width = x_of(place * _BIN_NS), x_of((place + 1) * _BIN_NS) - x_of(place * _BIN_NS)
        y = _y_of(top, count / most)
        yield f"<rect class=request x={x:.1f} y={y:.1f} width={max(width - 1, 1):.1f} height={top + _PANEL - y:.1f} />"
    yield _label(f"{most * _SECOND_NS // _BIN_NS}", top)
    for at_ns, name in day.parts:
        yield f"<text class=part x={x_of(at_ns) + 4:.1f} y={top + 12:.1f}>{escape(name)}</text>"


def _latencies(day: Day, x_of: Callable[[float], float], top: float) -> Iterable[str]:
    seen = [latency_ns for run in day.runs for _, latency_ns in run.requests]
    least, most = max(min(seen, default=1), 1), max([*seen, day.slo_ns, 2])
    low, high = math.log10(least), max(math.log10(most), math.log10(least) + 0.1)

    def y_of(latency_ns: float) -> float:
        return _y_of(top, (math.log10(max(latency_ns, 1)) - low) / (high - low))

    for latency_ns in ticks(least, most)[::2]:
        yield _label(f"{latency_ns / 1e6:g} ms", y_of(latency_ns))
    for run in day.runs:
        for due_ns, latency_ns in run.requests:
            place = f"cx={x_of(due_ns):.1f} cy={y_of(latency_ns):.1f}"
            yield f"<circle class='dot act{run.number}' {place} r=1.3><title>{escape(run.name)}</title></circle>"
    y = y_of(day.slo_ns)
    yield f"<line class=objective x1={_LEFT} x2={_WIDTH - _RIGHT} y1={y:.1f} y2={y:.1f} />"


def _shares(day: Day, x_of: Callable[[float], float], top: float) -> Iterable[str]:
    for part in (0.0, 0.5, 1.0):
        yield _label(f"{part:.0%}", _y_of(top, part))
    for run in day.runs:
        points = []
        for place, (at_ns, online_ppm) in enumerate(run.shares):
            after_ns = run.shares[place + 1][0] if place + 1 < len(run.shares) else day.span_ns
            y = _y_of(top, online_ppm / 1e6)
            points += [f"{x_of(at_ns):.1f},{y:.1f}", f"{x_of(after_ns):.1f},{y:.1f}"]
        if points:
            yield f"<polyline class='curve act{run.number}' points='{' '.join(points)}' />"


def _paces(day: Day, x_of: Callable[[float], float], top: float) -> Iterable[str]:
    for part in (0.0, 0.5, 1.0):
        yield _label(f"{part:.0%}", _y_of(top, part))
    for run in day.runs:
        points = [f"{x_of((begin + end) / 2):.1f},{_y_of(top, part):.1f}" for begin, end, part in run.paces]
        if points:
            yield f"<polyline class='curve act{run.number}' points='{' '.join(points)}' />"


def day_rows(day: Day) -> Sequence[tuple[str, str, str, str]]:
    """Of each run: its name, the part within the objective, the 99th percentile, the training job's speed."""
    return [(run.name, f"{run.attained:.1%}", duration(run.p99_ns), f"{run.training:.0%}") for run in day.runs]
