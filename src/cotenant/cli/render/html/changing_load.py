"""Charts of a changing request load: rate, latencies, online share and training throughput over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Final

import msgspec

from cotenant.cli.render.html.charts import LEFT, RIGHT, WIDTH, svg, ticks
from cotenant.cli.render.html.page import hover_points
from cotenant.cli.render.profile import duration
from cotenant.units.instant import SECOND_NS

_PANEL: Final = 120
_GAP: Final = 34
_BIN_NS: Final = 250_000_000
"""The request rate is drawn per interval of this length."""


class ChangingLoadRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of the requests in one sharing mode."""

    name: str
    number: int
    """Number of its colour."""
    requests: list[tuple[int, int]]
    """Due time since the start and latency of each request, in nanoseconds."""
    shares: list[tuple[int, int]] = []
    """Instants of changes of the online share and its values in millionths; empty if there is no online share."""
    paces: list[tuple[int, int, float]]
    """Start, end, and the training throughput relative to that alone."""
    attained: float
    """Fraction of the requests within the objective."""
    p99_ns: int
    training: float | None
    """Training throughput over the whole run, relative to that alone; None: the service ran alone."""


class ChangingLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A changing request load and its runs."""

    slo_ns: int
    span_ns: int
    parts: list[tuple[int, str]]
    """Start and name of each part of the load."""
    runs: list[ChangingLoadRun]


def changing_load_chart(changing_load: ChangingLoad) -> str:
    """Return four panels: request rate, latencies, online share and training throughput."""

    def x_of(at_ns: float) -> float:
        return LEFT + min(max(at_ns / changing_load.span_ns, 0.0), 1.0) * (WIDTH - LEFT - RIGHT)

    panels: tuple[tuple[str, Callable[[ChangingLoad, Callable[[float], float], float], Iterable[str]]], ...] = (
        ("requests per second", _load),
        (f"latency of each request; the line: the objective, {duration(changing_load.slo_ns)}", _latencies),
        ("online share of the device, as set by the node", _shares),
        ("training throughput relative to alone", _paces),
    )
    parts = []
    for index, (title, draw) in enumerate(panels):
        top = 24 + index * (_PANEL + _GAP)
        parts.append(f"<text x={LEFT} y={top - 6:.1f}>{escape(title)}</text>")
        parts.append(f"<line class=grid x1={LEFT} x2={WIDTH - RIGHT} y1={top + _PANEL} y2={top + _PANEL} />")
        parts += [
            f"<line class=grid x1={x_of(at_ns):.1f} x2={x_of(at_ns):.1f} y1={top} y2={top + _PANEL} />"
            for at_ns, _ in changing_load.parts[1:]
        ]
        parts += draw(changing_load, x_of, top)
    height = 24 + len(panels) * (_PANEL + _GAP)
    for second in range(0, changing_load.span_ns // SECOND_NS + 1, 2):
        x = x_of(second * SECOND_NS)
        parts.append(f"<text x={x:.1f} y={height - 12} text-anchor=middle>{second} s</text>")
    return svg(height, parts, "changing load")


def _y_of(top: float, part: float) -> float:
    return top + _PANEL * (1 - min(max(part, 0.0), 1.0))


def _label(text: str, y: float) -> str:
    return f"<text x={LEFT - 6} y={y + 4:.1f} text-anchor=end>{escape(text)}</text>"


def _load(changing_load: ChangingLoad, x_of: Callable[[float], float], top: float) -> Iterable[str]:
    bins = [0] * (changing_load.span_ns // _BIN_NS + 1)
    for due_ns, _ in changing_load.runs[0].requests:
        bins[min(due_ns // _BIN_NS, len(bins) - 1)] += 1
    max_value = max(*bins, 1)
    for index, count in enumerate(bins):
        x, width = x_of(index * _BIN_NS), x_of((index + 1) * _BIN_NS) - x_of(index * _BIN_NS)
        y = _y_of(top, count / max_value)
        title = f"<title>{count * SECOND_NS // _BIN_NS} requests per second at {index * _BIN_NS / 1e9:.2f} s</title>"
        size = f"width={max(width - 1, 1):.1f} height={top + _PANEL - y:.1f}"
        yield f"<rect class=request x={x:.1f} y={y:.1f} {size}>{title}</rect>"
    yield _label(f"{max_value * SECOND_NS // _BIN_NS}", top)
    for at_ns, name in changing_load.parts:
        yield f"<text class=part x={x_of(at_ns) + 4:.1f} y={top + 12:.1f}>{escape(name)}</text>"


def _latencies(changing_load: ChangingLoad, x_of: Callable[[float], float], top: float) -> Iterable[str]:
    latencies_ns = [latency_ns for run in changing_load.runs for _, latency_ns in run.requests]
    min_value, max_value = max(min(latencies_ns, default=1), 1), max([*latencies_ns, changing_load.slo_ns, 2])
    low, high = math.log10(min_value), max(math.log10(max_value), math.log10(min_value) + 0.1)

    def y_of(latency_ns: float) -> float:
        return _y_of(top, (math.log10(max(latency_ns, 1)) - low) / (high - low))

    for latency_ns in ticks(min_value, max_value)[::2]:
        yield _label(f"{latency_ns / 1e6:g} ms", y_of(latency_ns))
    for run in changing_load.runs:
        for due_ns, latency_ns in run.requests:
            position = f"cx={x_of(due_ns):.1f} cy={y_of(latency_ns):.1f}"
            title = f"{run.name}: {latency_ns / 1e6:.2f} ms at {due_ns / 1e9:.2f} s"
            yield f"<circle class='dot series{run.number}' {position} r=1.3><title>{escape(title)}</title></circle>"
    y = y_of(changing_load.slo_ns)
    yield f"<line class=objective x1={LEFT} x2={WIDTH - RIGHT} y1={y:.1f} y2={y:.1f} />"


def _shares(changing_load: ChangingLoad, x_of: Callable[[float], float], top: float) -> Iterable[str]:
    for part in (0.0, 0.5, 1.0):
        yield _label(f"{part:.0%}", _y_of(top, part))
    for run in changing_load.runs:
        points = []
        for index, (at_ns, online_ppm) in enumerate(run.shares):
            until_ns = run.shares[index + 1][0] if index + 1 < len(run.shares) else changing_load.span_ns
            y = _y_of(top, online_ppm / 1e6)
            points += [f"{x_of(at_ns):.1f},{y:.1f}", f"{x_of(until_ns):.1f},{y:.1f}"]
        if points:
            yield f"<polyline class='curve series{run.number}' points='{' '.join(points)}' />"
            yield hover_points(
                (x_of(at_ns), _y_of(top, ppm / 1e6), f"{run.name}: {ppm / 1e4:.0f} % from {at_ns / 1e9:.2f} s on")
                for at_ns, ppm in run.shares
            )


def _paces(changing_load: ChangingLoad, x_of: Callable[[float], float], top: float) -> Iterable[str]:
    for part in (0.0, 0.5, 1.0):
        yield _label(f"{part:.0%}", _y_of(top, part))
    for run in changing_load.runs:
        points = [f"{x_of((begin + end) / 2):.1f},{_y_of(top, part):.1f}" for begin, end, part in run.paces]
        if points:
            yield f"<polyline class='curve series{run.number}' points='{' '.join(points)}' />"
            yield hover_points(
                (x_of((begin + end) / 2), _y_of(top, part), f"{run.name}: {part:.0%} at {(begin + end) / 2e9:.2f} s")
                for begin, end, part in run.paces
            )


def changing_load_rows(changing_load: ChangingLoad) -> Sequence[tuple[str, str, str, str]]:
    """Return the name, attainment, p99 and training throughput of each run."""
    return [
        (
            run.name,
            f"{run.attained:.1%}",
            duration(run.p99_ns),
            "-" if run.training is None else f"{run.training:.0%}",
        )
        for run in changing_load.runs
    ]
