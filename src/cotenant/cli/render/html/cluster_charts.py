"""Charts of a simulated cluster: time series, distributions and a heat map of GPUs, as SVG text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Final, NamedTuple

from cotenant.cli.render.html.charts import LEFT, RIGHT, WIDTH, svg
from cotenant.cli.render.html.page import hover_points

_HEIGHT: Final = 220
_TOP: Final = 14
_BOTTOM: Final = 34
_CELL: Final = 7
_POINTS_LIMIT: Final = 400
_HOVER_POINTS: Final = 60
"""About this number of points of a curve show their values on hover."""
_SHOWN_FRACTION: Final = 0.999
_SHADES: Final = ("#eef3f6", "#3d7ea6", "#14283a")
"""Colours for 0 %, 50 % and 100 % utilization."""


class Line(NamedTuple):
    """One curve."""

    name: str
    colour: int
    points: Sequence[tuple[float, float]]


def series(
    lines: Sequence[Line], label: str, format_value: Callable[[float], str], *, max_value: float, min_value: float = 0.0
) -> str:
    """Return curves over hours, from `min_value` to `max_value`."""
    hours = max((x for line in lines for x, _ in line.points), default=1.0) or 1.0

    def x_of(hour: float) -> float:
        return LEFT + hour / hours * (WIDTH - LEFT - RIGHT)

    parts = _rows(min_value, max_value, format_value)
    step = _step(hours)
    parts += _columns([(x_of(tick * step), f"{tick * step:g} h") for tick in range(int(hours / step + 1e-9) + 1)])
    curves = _curves(lines, x_of, (min_value, max_value), lambda hour: f"{hour:.1f} h", format_value)
    return svg(_HEIGHT, [*parts, *curves], label)


def distribution(lines: Sequence[Line], label: str, format_value: Callable[[float], str]) -> str:
    """Return cumulative distributions over a logarithmic axis."""
    values = [x for line in lines for x, _ in line.points if x > 0]
    low, high = math.log10(min(values, default=0.1)), math.log10(max(values, default=10.0))
    high = max(high, low + 0.1)

    def x_of(value: float) -> float:
        return LEFT + (math.log10(max(value, 10**low)) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    factors = (1, 2, 5) if high - low < 3 else (1,)
    ticks = [factor * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for factor in factors]
    inside = [tick for tick in ticks if low <= math.log10(tick) <= high]
    columns = _columns([(x_of(tick), format_value(tick)) for tick in inside])
    curves = _curves(lines, x_of, (0.0, 1.0), format_value, _percent)
    return svg(_HEIGHT, [*_rows(0.0, 1.0, _percent), *columns, *curves], label)


def slowdowns(line: Line, label: str) -> str:
    """Return the cumulative distribution of slowdowns from 1 to the 99.9th percentile."""
    max_value = max(next((x for x, part in line.points if part >= _SHOWN_FRACTION), 1.0), 1.1)
    inside = [point for point in line.points if point[0] <= max_value]

    def x_of(times: float) -> float:
        return LEFT + (times - 1) / (max_value - 1) * (WIDTH - LEFT - RIGHT)

    ticks = [1 + (max_value - 1) * index / 5 for index in range(6)]
    columns = _columns([(x_of(tick), f"{tick:.2f}") for tick in ticks])
    curve = _curves([line._replace(points=inside)], x_of, (0.0, 1.0), lambda times: f"{times:.3f}", _percent)
    return svg(_HEIGHT, [*_rows(0.0, 1.0, _percent), *columns, *curve], label)


def _percent(part: float) -> str:
    return f"{part:.0%}"


def heat_map(cells: Sequence[Sequence[float]], hours: float, gpus: int) -> str:
    """Return a heat map: a row for each group of GPUs in node order, a column for each interval."""
    columns = len(cells[0]) if cells else 0
    if not columns:
        return ""
    width = (WIDTH - LEFT - RIGHT) / columns
    parts = []
    for row, line in enumerate(cells):
        for column, value in enumerate(line):
            position = f"x='{LEFT + column * width:.2f}' y='{_TOP + row * _CELL}' width='{width + 0.3:.2f}'"
            title = f"<title>{value:.0%} at {hours * (column + 0.5) / columns:.1f} h</title>"
            parts.append(f"<rect {position} height='{_CELL + 0.3}' fill='{_shade(value)}'>{title}</rect>")
    bottom = _TOP + len(cells) * _CELL
    step = _step(hours)
    for tick in range(int(hours / step + 1e-9) + 1):
        x = LEFT + tick * step / hours * (WIDTH - LEFT - RIGHT)
        parts.append(f"<text x='{x:.1f}' y='{bottom + 16}' text-anchor='middle'>{tick * step:g} h</text>")
    parts.append(f"<text x='{LEFT - 6}' y='{_TOP + 9}' text-anchor='end'>GPU 0</text>")
    parts.append(f"<text x='{LEFT - 6}' y='{bottom}' text-anchor='end'>{gpus - 1:,}</text>")
    for tenth in range(11):
        x = LEFT + tenth * 24
        parts.append(f"<rect x='{x}' y='{bottom + 26}' width='24.3' height='10' fill='{_shade(tenth / 10)}'/>")
    parts.append(f"<text x='{LEFT + 272}' y='{bottom + 35}'>utilization, 0 % to 100 %</text>")
    return svg(bottom + 44, parts, "utilization of GPUs over time")


def _rows(min_value: float, max_value: float, format_value: Callable[[float], str]) -> list[str]:
    parts = []
    for index in range(5):
        value = min_value + (max_value - min_value) * index / 4
        y = _y_of(value, min_value, max_value)
        parts.append(f"<line class='grid' x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y:.1f}' y2='{y:.1f}'/>")
        parts.append(f"<text x='{LEFT - 6}' y='{y + 4:.1f}' text-anchor='end'>{escape(format_value(value))}</text>")
    return parts


def _columns(ticks: Sequence[tuple[float, str]]) -> list[str]:
    parts = []
    for x, text in ticks:
        parts.append(f"<line class='grid' x1='{x:.1f}' x2='{x:.1f}' y1='{_TOP}' y2='{_HEIGHT - _BOTTOM}'/>")
        parts.append(f"<text x='{x:.1f}' y='{_HEIGHT - 14}' text-anchor='middle'>{escape(text)}</text>")
    return parts


def _curves(
    lines: Sequence[Line],
    x_of: Callable[[float], float],
    limits: tuple[float, float],
    format_x: Callable[[float], str],
    format_y: Callable[[float], str],
) -> list[str]:
    """Return the curves between these values of y; points on them show their values on hover."""
    parts = []
    for line in lines:
        points = line.points
        if len(points) > _POINTS_LIMIT:
            last = len(points) - 1
            points = [points[round(index * last / _POINTS_LIMIT)] for index in range(_POINTS_LIMIT + 1)]
        text = " ".join(f"{x_of(x):.1f},{_y_of(y, *limits):.1f}" for x, y in points)
        if text:
            title = f"<title>{escape(line.name)}</title>"
            parts.append(f"<polyline class='curve series{line.colour}' points='{text}'>{title}</polyline>")
            every = max(len(points) // _HOVER_POINTS, 1)
            shown = [(x, y, f"{line.name}: {format_y(y)} at {format_x(x)}") for x, y in points[::every]]
            parts.append(hover_points((x_of(x), _y_of(y, *limits), text) for x, y, text in shown))
    return parts


def _y_of(value: float, min_value: float, max_value: float) -> float:
    part = (value - min_value) / (max_value - min_value) if max_value > min_value else 0.0
    return _HEIGHT - _BOTTOM - min(max(part, 0.0), 1.0) * (_HEIGHT - _BOTTOM - _TOP)


def _step(hours: float) -> float:
    """Return the distance of axis ticks in hours, with at most twelve ticks."""
    return next((step for step in (0.25, 0.5, 1, 2, 3, 6, 12, 24, 48, 96) if hours / step <= 12), 168.0)


def _shade(value: float) -> str:
    part = min(max(value, 0.0), 1.0) * (len(_SHADES) - 1)
    index = min(int(part), len(_SHADES) - 2)
    low, high = (_SHADES[index + offset][1:] for offset in (0, 1))
    mixed = [
        round(int(low[at : at + 2], 16) + (part - index) * (int(high[at : at + 2], 16) - int(low[at : at + 2], 16)))
        for at in (0, 2, 4)
    ]
    return "#" + "".join(f"{channel:02x}" for channel in mixed)
