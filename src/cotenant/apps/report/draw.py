"""How are latencies, shares and a device's milliseconds drawn? SVG as text, coloured by the page's style."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Final

from cotenant.apps.report.act import Act, Picture

_WIDTH: Final = 900
_LEFT: Final = 60
_RIGHT: Final = 20
_CURVE_HEIGHT: Final = 260
_LANE_HEIGHT: Final = 46
_STEPS: Final = 200  # points of a curve: more than a screen tells apart
_NS_PER_MS: Final = 1e6
_THINNEST: Final = 0.3


def curves(acts: Sequence[Act]) -> str:
    """The part of the requests that took no longer than so long; time by its logarithm."""
    least = max(min(act.latencies_ns[0] for act in acts), 1)
    most = max(least + 1, *(act.latencies_ns[-1] for act in acts))
    low, high = math.log10(least), math.log10(most)

    def x_of(latency_ns: float) -> float:
        return _LEFT + (math.log10(max(latency_ns, 1)) - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def y_of(part: float) -> float:
        return _CURVE_HEIGHT - 30 - part * (_CURVE_HEIGHT - 50)

    parts = [_axes(x_of, y_of, least, most)]
    for number, act in enumerate(acts):
        count = len(act.latencies_ns)
        places = [round(step * (count - 1) / _STEPS) for step in range(_STEPS + 1)] if count > _STEPS else range(count)
        points = " ".join(f"{x_of(act.latencies_ns[place]):.1f},{y_of((place + 1) / count):.1f}" for place in places)
        parts.append(
            f"<polyline class='curve act{number}' points='{points}'><title>{escape(act.name)}</title></polyline>"
        )
    return svg(_CURVE_HEIGHT, parts, "distribution of latencies")


def _axes(x_of: Callable[[float], float], y_of: Callable[[float], float], least: int, most: int) -> str:
    lines = []
    for part in (0.0, 0.5, 0.9, 1.0):
        y = y_of(part)
        lines.append(f"<line class=grid x1={_LEFT} x2={_WIDTH - _RIGHT} y1={y:.1f} y2={y:.1f} />")
        lines.append(f"<text x={_LEFT - 6} y={y + 4:.1f} text-anchor=end>{part:.0%}</text>")
    for latency_ns in ticks(least, most):
        x = x_of(latency_ns)
        lines.append(f"<line class=grid x1={x:.1f} x2={x:.1f} y1={y_of(0):.1f} y2={y_of(1):.1f} />")
        label = f"{latency_ns / _NS_PER_MS:g} ms"
        lines.append(f"<text x={x:.1f} y={_CURVE_HEIGHT - 10} text-anchor=middle>{label}</text>")
    return "".join(lines)


def ticks(least: int, most: int) -> list[int]:
    """1, 2 and 5 times powers of ten between two values."""
    found = []
    power = 10 ** int(math.log10(least))
    while power <= most:
        found += [factor * power for factor in (1, 2, 5) if least <= factor * power <= most]
        power *= 10
    return found


def bars(rows: Sequence[tuple[str, str, float, int]]) -> str:
    """Rows of a label, what is said at the bar's end, a part of one, and the act whose colour it has."""
    parts = []
    for place, (label, said, part, number) in enumerate(rows):
        y = 8 + 26 * place
        width = max(0.0, min(part, 1.0)) * (_WIDTH - 420)
        parts.append(f"<text x=0 y={y + 13}>{escape(label)}</text>")
        parts.append(f"<rect class='bar act{number}' x=300 y={y} width={width:.1f} height=16 rx=2 />")
        parts.append(f"<text x={306 + width:.1f} y={y + 13}>{escape(said)}</text>")
    return svg(16 + 26 * len(rows), parts, "utilization")


def timeline(picture: Picture) -> str:
    """Requests as bars; below them the kernels of each program as they ran."""
    span_ns = picture.end_ns - picture.begin_ns

    def x_of(at_ns: int) -> float:
        inside_ns = min(max(at_ns, picture.begin_ns), picture.end_ns) - picture.begin_ns
        return _LEFT + inside_ns / span_ns * (_WIDTH - _LEFT - _RIGHT)

    parts = [f"<text x=0 y={24 + lane * _LANE_HEIGHT}>{name}</text>" for lane, name in enumerate(_LANES)]
    lanes = (("request", picture.requests), ("online", picture.online), ("offline", picture.offline))
    for lane, (kind, spans) in enumerate(lanes):
        for begin_ns, end_ns in spans:
            width = max(x_of(end_ns) - x_of(begin_ns), _THINNEST)
            place = f"x={x_of(begin_ns):.2f} y={8 + lane * _LANE_HEIGHT} width={width:.2f}"
            parts.append(f"<rect class={kind} {place} height={_LANE_HEIGHT - 18} />")
    for milliseconds in range(0, round(span_ns / _NS_PER_MS) + 1, 5):
        x = x_of(picture.begin_ns + milliseconds * 1_000_000)
        parts.append(f"<line class=grid x1={x:.1f} x2={x:.1f} y1=4 y2={3 * _LANE_HEIGHT} />")
        parts.append(f"<text x={x:.1f} y={3 * _LANE_HEIGHT + 16} text-anchor=middle>{milliseconds} ms</text>")
    return svg(3 * _LANE_HEIGHT + 24, parts, "some milliseconds of the device")


_LANES: Final = ("requests", "service", "training")


def svg(height: int, parts: Sequence[str], label: str) -> str:
    """A drawing as wide as the page."""
    head = f"<svg viewBox='0 0 {_WIDTH} {height}' role=img aria-label='{escape(label)}'>"
    return f"{head}{''.join(parts)}</svg>"
