"""HTML page of `cotenant whatif`: distributions of latencies by mode, latency by share, and offline progress."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Final

from cotenant.cli.render.html.charts import LEFT, RIGHT, WIDTH, bars, svg
from cotenant.cli.render.html.page import hover_points, html_page, scrolling_table
from cotenant.cli.render.whatif import answer_line, fraction, milliseconds, share_text
from cotenant.runner.machine import MachineState
from cotenant.simulate.whatif import ModeForecast, TenantForecast, WhatIfReport

_HEIGHT: Final = 260
_HOVER_POINTS: Final = 50
"""About this number of points of a curve show their values on hover."""
_STYLE: Final = """
.objective { stroke: #c33; stroke-dasharray: 4; }
.series0 { stroke: #888; fill: #888; } .series1 { stroke: #2a8f5c; fill: #2a8f5c; }
.series2 { stroke: #c7802b; fill: #c7802b; }
.series3 { stroke: #7a5bbf; fill: #7a5bbf; } .series4 { stroke: #3d7ea6; fill: #3d7ea6; }
.curve.series0, .curve.series1, .curve.series2, .curve.series3, .curve.series4 { fill: none; }
.key span { display: inline-block; margin-right: 1.2rem; } .key i { display: inline-block; width: 1.4rem; height: 3px;
vertical-align: middle; margin-right: .3rem; }
"""
_MODES_NOTE: Final = (
    "alone: each tenant has a GPU of its own. mps: kernels of all tenants run at the same time, with priorities of "
    "streams in mps-priority. slices: the driver gives the GPU to one process after the other."
)
_COLOURS: Final = ("#888", "#2a8f5c", "#c7802b", "#7a5bbf", "#3d7ea6")


def whatif_page(report: WhatIfReport, machine: MachineState) -> str:
    """Return the HTML page."""
    parts = [*_tenants(report), "<h2>Sharing modes</h2>", *_modes(report), _key([mode.mode for mode in report.modes])]
    for tenant in report.tenants:
        if tenant.online:
            parts += [f"<h2>{escape(tenant.name)}: latencies by sharing mode</h2>", _latencies(report, tenant)]
        if tenant.curve:
            parts += [f"<h2>{escape(tenant.name)}: latency by share of the SMs, alone</h2>", _shares(tenant)]
    parts += [*_progress(report), *(f"<p class=note>{escape(line)}</p>" for line in report.warnings)]
    if len(report.placement) > 1:
        parts.append("<h2>Placement</h2><ol start=0>")
        parts += [f"<li>{escape(', '.join(group))}</li>" for group in report.placement]
        parts.append("</ol>")
    note = (
        f"Simulated time: {report.seconds:g} s, seed {report.seed}. Durations of kernels are estimated from the "
        "operators of the models unless a tenant is marked as measured; intervals contain 90 % of the outcomes."
    )
    parts.append(f"<p class=note>{escape(note)}</p>")
    return html_page(f"Sharing {report.gpu_name}", answer_line(report), machine, parts, _STYLE, is_measured=False)


def _tenants(report: WhatIfReport) -> Iterable[str]:
    rows = []
    for tenant in report.tenants:
        name = escape(tenant.name) + (" (measured)" if tenant.measured else "")
        objective = f"{tenant.slo_ms:g} ms at {tenant.rate_per_s:g}/s" if tenant.online else "-"
        p99 = "-" if tenant.p99_ms is None else milliseconds(tenant.p99_ms) + ("" if tenant.met else ": missed")
        share = share_text(tenant)
        progress = "-" if tenant.progress is None else fraction(tenant.progress)
        rows.append((name, milliseconds(tenant.alone_ms), objective, p99, share, progress))
    yield from scrolling_table(("tenant", "alone", "objective", "p99 shared", "share needed", "progress"), rows)


def _modes(report: WhatIfReport) -> Iterable[str]:
    """Return the table of p99 of online tenants and speed of offline ones, by mode."""
    names = [tenant.name for tenant in report.tenants]
    heads = [
        f"{tenant.name}: p99, objective {tenant.slo_ms:g} ms" if tenant.online else f"{tenant.name}: speed"
        for tenant in report.tenants
    ]
    rows = [(escape(mode.mode), *(escape(_cell(mode, name)) for name in names)) for mode in report.modes]
    yield from scrolling_table(("mode", *(escape(head) for head in heads)), rows)
    yield f"<p class=note>{_MODES_NOTE}</p>"


def _cell(mode: ModeForecast, name: str) -> str:
    if name not in mode.p99_ms:
        return f"{mode.progress[name]:.0%}"
    return f"{mode.p99_ms[name]:.3g} ms" + ("" if mode.met[name] else ": missed")


def _key(names: Sequence[str]) -> str:
    items = (
        f"<span><i style='background:{_COLOURS[index % len(_COLOURS)]}'></i>{escape(name)}</span>"
        for index, name in enumerate(names)
    )
    return f"<p class=key>{''.join(items)}</p>"


def _latencies(report: WhatIfReport, tenant: TenantForecast) -> str:
    """Return the distributions of latencies over a logarithmic axis, with the objective."""
    series = [mode.curves[tenant.name] for mode in report.modes]
    names = [mode.mode for mode in report.modes]
    positive = [value for curve in series for value in curve if value > 0]
    low, high = min(positive, default=0.1), max([*positive, tenant.slo_ms], default=1.0)
    x_of = _scale(low, high * 1.05)

    def y_of(part: float) -> float:
        return _HEIGHT - 30 - part * (_HEIGHT - 50)

    parts = [_grid(x_of, low, high)]
    for part in (0.0, 0.5, 0.9, 0.99):
        parts.append(f"<line class=grid x1={LEFT} x2={WIDTH - RIGHT} y1={y_of(part):.1f} y2={y_of(part):.1f} />")
        parts.append(f"<text x={LEFT - 6} y={y_of(part) + 4:.1f} text-anchor=end>{part:.0%}</text>")
    at = x_of(tenant.slo_ms)
    parts.append(f"<line class=objective x1={at:.1f} x2={at:.1f} y1={y_of(0):.1f} y2={y_of(1):.1f} />")
    side, anchor = (4, "start") if at < WIDTH / 2 else (-4, "end")
    parts.append(f"<text x={at + side:.1f} y=14 text-anchor={anchor}>objective {tenant.slo_ms:g} ms</text>")
    for number, curve in enumerate(series):
        steps = max(len(curve) - 1, 1)
        points = " ".join(f"{x_of(value):.1f},{y_of(index / steps):.1f}" for index, value in enumerate(curve))
        parts.append(f"<polyline class='curve series{number % len(_COLOURS)}' points='{points}' />")
        every = max(len(curve) // _HOVER_POINTS, 1)
        shown = [(index, curve[index]) for index in range(0, len(curve), every)]
        parts.append(
            hover_points(
                (x_of(value), y_of(index / steps), f"{names[number]}: {index / steps:.0%} within {value:.3g} ms")
                for index, value in shown
            )
        )
    return svg(_HEIGHT, parts, f"distribution of latencies of {tenant.name}")


def _shares(tenant: TenantForecast) -> str:
    """Return latency over the share of the SMs."""
    top = max(value for _, value in tenant.curve)

    def x_of(share: float) -> float:
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y_of(value: float) -> float:
        return _HEIGHT - 30 - value / top * (_HEIGHT - 50)

    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(f"<text x={x_of(share):.1f} y={_HEIGHT - 10} text-anchor=middle>{share:.0%}</text>")
    for value in (0.0, top / 2, top):
        parts.append(f"<line class=grid x1={LEFT} x2={WIDTH - RIGHT} y1={y_of(value):.1f} y2={y_of(value):.1f} />")
        parts.append(f"<text x={LEFT - 6} y={y_of(value) + 4:.1f} text-anchor=end>{value:.2g} ms</text>")
    points = " ".join(f"{x_of(share):.1f},{y_of(value):.1f}" for share, value in tenant.curve)
    parts.append(f"<polyline class='curve series1' points='{points}' />")
    values = ((x_of(share), y_of(value), f"{value:.3g} ms with {share:.0%}") for share, value in tenant.curve)
    parts.append(hover_points(values))
    return svg(_HEIGHT, parts, f"latency of {tenant.name} by share of the SMs")


def _progress(report: WhatIfReport) -> Iterable[str]:
    names = [tenant.name for tenant in report.tenants if not tenant.online]
    if not names:
        return
    yield "<h2>Speed of offline tenants relative to alone</h2>"
    rows = [
        (f"{name}, {mode.mode}", f"{mode.progress[name]:.0%}", mode.progress[name], number % len(_COLOURS))
        for name in names
        for number, mode in enumerate(report.modes)
    ]
    yield bars(rows)


def _scale(low: float, high: float) -> Callable[[float], float]:
    first, last = math.log10(max(low, 1e-3)), math.log10(max(high, low * 1.01, 1e-3))

    def x_of(value: float) -> float:
        return LEFT + (math.log10(max(value, 1e-3)) - first) / max(last - first, 1e-9) * (WIDTH - LEFT - RIGHT)

    return x_of


def _grid(x_of: Callable[[float], float], low: float, high: float) -> str:
    lines = []
    power = 10.0 ** math.floor(math.log10(max(low, 1e-3)))
    while power <= high:
        for factor in (1, 2, 5):
            value = factor * power
            if low <= value <= high:
                lines.append(f"<line class=grid x1={x_of(value):.1f} x2={x_of(value):.1f} y1=20 y2={_HEIGHT - 30} />")
                lines.append(f"<text x={x_of(value):.1f} y={_HEIGHT - 10} text-anchor=middle>{value:g} ms</text>")
        power *= 10
    return "".join(lines)
