"""Charts of latencies, shares and kernel timelines as SVG text, coloured by the style of the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Final

from cotenant.cli.render.html.page import hover_points
from cotenant.cli.render.html.phase import PhaseResult, TimelineWindow

WIDTH: Final = 900
LEFT: Final = 60
RIGHT: Final = 20
_CURVE_HEIGHT: Final = 260
_TRACK_HEIGHT: Final = 46
_STEPS: Final = 200  # points of a curve, more than a screen can resolve
_NS_PER_MS: Final = 1e6
_MIN_WIDTH: Final = 0.3
_HOVER_PARTS: Final = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
"""Fractions of the requests whose latency is shown on hover."""


def curves(phases: Sequence[PhaseResult]) -> str:
    """Return the cumulative distributions of request latencies over a logarithmic axis."""
    min_value = max(min(phase.latencies_ns[0] for phase in phases), 1)
    max_value = max(min_value + 1, *(phase.latencies_ns[-1] for phase in phases))
    low, high = math.log10(min_value), math.log10(max_value)

    def x_of(latency_ns: float) -> float:
        return LEFT + (math.log10(max(latency_ns, 1)) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y_of(part: float) -> float:
        return _CURVE_HEIGHT - 30 - part * (_CURVE_HEIGHT - 50)

    parts = [_axes(x_of, y_of, min_value, max_value)]
    values: list[tuple[float, float, str]] = []
    for number, phase in enumerate(phases):
        count = len(phase.latencies_ns)
        indexes = [round(step * (count - 1) / _STEPS) for step in range(_STEPS + 1)] if count > _STEPS else range(count)
        points = " ".join(f"{x_of(phase.latencies_ns[index]):.1f},{y_of((index + 1) / count):.1f}" for index in indexes)
        parts.append(
            f"<polyline class='curve series{number}' points='{points}'><title>{escape(phase.name)}</title></polyline>"
        )
        for part in _HOVER_PARTS:
            latency_ns = phase.latencies_ns[max(math.ceil(part * count) - 1, 0)]
            text = f"{phase.name}: {part:.0%} of the requests within {latency_ns / _NS_PER_MS:.2f} ms"
            values.append((x_of(latency_ns), y_of(part), text))
    return svg(_CURVE_HEIGHT, [*parts, hover_points(values)], "distribution of latencies")


def _axes(x_of: Callable[[float], float], y_of: Callable[[float], float], min_value: int, max_value: int) -> str:
    lines = []
    for part in (0.0, 0.5, 0.9, 1.0):
        y = y_of(part)
        lines.append(f"<line class=grid x1={LEFT} x2={WIDTH - RIGHT} y1={y:.1f} y2={y:.1f} />")
        lines.append(f"<text x={LEFT - 6} y={y + 4:.1f} text-anchor=end>{part:.0%}</text>")
    for latency_ns in ticks(min_value, max_value):
        x = x_of(latency_ns)
        lines.append(f"<line class=grid x1={x:.1f} x2={x:.1f} y1={y_of(0):.1f} y2={y_of(1):.1f} />")
        label = f"{latency_ns / _NS_PER_MS:g} ms"
        lines.append(f"<text x={x:.1f} y={_CURVE_HEIGHT - 10} text-anchor=middle>{label}</text>")
    return "".join(lines)


def ticks(min_value: int, max_value: int) -> list[int]:
    """Return 1, 2 and 5 times powers of ten between two values."""
    values = []
    power = 10 ** int(math.log10(min_value))
    while power <= max_value:
        values += [factor * power for factor in (1, 2, 5) if min_value <= factor * power <= max_value]
        power *= 10
    return values


def bars(rows: Sequence[tuple[str, str, float, int]]) -> str:
    """Return bars; a row is a label, the text at the end of the bar, its length from 0 to 1, and its colour number."""
    parts = []
    for index, (label, value, part, number) in enumerate(rows):
        y = 8 + 26 * index
        width = max(0.0, min(part, 1.0)) * (WIDTH - 420)
        parts.append(f"<text x=0 y={y + 13}>{escape(label)}</text>")
        title = f"<title>{escape(f'{label}: {value}')}</title>"
        parts.append(f"<rect class='bar series{number}' x=300 y={y} width={width:.1f} height=16 rx=2>{title}</rect>")
        parts.append(f"<text x={306 + width:.1f} y={y + 13}>{escape(value)}</text>")
    return svg(16 + 26 * len(rows), parts, "utilization")


def timeline_chart(timeline: TimelineWindow) -> str:
    """Return one track of requests, and below it the kernels of each program as they ran."""
    span_ns = timeline.end_ns - timeline.begin_ns

    def x_of(at_ns: int) -> float:
        offset_ns = min(max(at_ns, timeline.begin_ns), timeline.end_ns) - timeline.begin_ns
        return LEFT + offset_ns / span_ns * (WIDTH - LEFT - RIGHT)

    parts = [f"<text x=0 y={24 + track * _TRACK_HEIGHT}>{name}</text>" for track, name in enumerate(_TRACKS)]
    tracks = (("request", timeline.requests), ("online", timeline.online), ("offline", timeline.offline))
    for track, (kind, spans) in enumerate(tracks):
        for begin_ns, end_ns in spans:
            width = max(x_of(end_ns) - x_of(begin_ns), _MIN_WIDTH)
            position = f"x={x_of(begin_ns):.2f} y={8 + track * _TRACK_HEIGHT} width={width:.2f}"
            begin_ms, length_ms = (begin_ns - timeline.begin_ns) / _NS_PER_MS, (end_ns - begin_ns) / _NS_PER_MS
            title = f"<title>{_TRACKS[track]}: {length_ms:.3f} ms from {begin_ms:.3f} ms</title>"
            parts.append(f"<rect class={kind} {position} height={_TRACK_HEIGHT - 18}>{title}</rect>")
    for milliseconds in range(0, round(span_ns / _NS_PER_MS) + 1, 5):
        x = x_of(timeline.begin_ns + milliseconds * 1_000_000)
        parts.append(f"<line class=grid x1={x:.1f} x2={x:.1f} y1=4 y2={3 * _TRACK_HEIGHT} />")
        parts.append(f"<text x={x:.1f} y={3 * _TRACK_HEIGHT + 16} text-anchor=middle>{milliseconds} ms</text>")
    return svg(3 * _TRACK_HEIGHT + 24, parts, "timeline of the device")


_TRACKS: Final = ("requests", "service", "training")


def svg(height: int, parts: Sequence[str], label: str) -> str:
    """Return an SVG element as wide as the page."""
    head = f"<svg viewBox='0 0 {WIDTH} {height}' role=img aria-label='{escape(label)}'>"
    return f"{head}{''.join(parts)}</svg>"
