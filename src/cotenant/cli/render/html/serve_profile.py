"""Plots of model profiles for `cotenant serve profile --plot`: run time against cores or GPU share, by batch size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Final

from cotenant.cli.render.html.charts import LEFT, RIGHT, WIDTH, ticks
from cotenant.cli.render.html.page import check_report, html_page, write_report
from cotenant.errors import ConfigError
from cotenant.predict.knee import Knees
from cotenant.predict.latency import Point, fit_surface
from cotenant.runner.machine import MachineState, read_machine
from cotenant.serve.commands.profile import ProfileOutcome
from cotenant.serve.model.run_times import RunTime
from cotenant.serve.model_profile_format import ModelProfile

_STEPS: Final = 100
_PANEL: Final = 300
_TOP: Final = 34
_BOTTOM: Final = 44
_COLOURS: Final = ("#3d7ea6", "#c0563f", "#4b8f5a", "#8a6bb0", "#b08d3f", "#5a5a5a", "#2a9d8f", "#d1495b")
_STYLE: Final = (
    "svg{font:12px system-ui,sans-serif}.grid{stroke:#8884}.knee{stroke:#444}.fit{fill:none;stroke-dasharray:5 4}"
)


def plotter(file: str) -> Callable[[Sequence[ProfileOutcome]], None]:
    """Return the function that draws into this file; raise ConfigError at once if the file cannot be written."""
    path = Path(file)
    if path.suffix not in (".svg", ".html"):
        raise ConfigError("--plot", file, "name a file that ends in .svg or .html")
    machine = read_machine()
    check_report("--plot", file)

    def draw(outcomes: Sequence[ProfileOutcome]) -> None:
        measured = [(outcome.profiled, outcome.knees) for outcome in outcomes if outcome.profiled and outcome.knees]
        drawing = _drawing(measured)
        write_report("--plot", path, drawing if path.suffix == ".svg" else _page(drawing, measured, machine))

    return draw


def _drawing(measured: Sequence[tuple[ModelProfile, Knees]]) -> str:
    panels = [
        f"<g transform='translate(0,{index * _PANEL})'>{''.join(_panel(profiled, knees))}</g>"
        for index, (profiled, knees) in enumerate(measured)
    ]
    height = max(len(measured), 1) * _PANEL
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}'><style>{_STYLE}</style>"
    return f"{head}{''.join(panels)}</svg>\n"


def _panel(profiled: ModelProfile, knees: Knees) -> list[str]:
    """Return the panel of one model: circles for runs alone, bars for runs with others, dashed lines for the fit."""
    all_units, widths = profiled.times.all_units, profiled.times.widths()
    times_ns = [time.typical_ns for time in (*profiled.alone, *profiled.times.times)]
    low, high = math.log10(max(min(times_ns), 1)), math.log10(max(*times_ns, 2))
    high = max(high, low + 0.1)

    def x_of(units: float) -> float:
        part = (units - widths[0]) / max(widths[-1] - widths[0], 1)
        return LEFT + 10 + part * (WIDTH - LEFT - RIGHT - 160)

    def y_of(time_ns: float) -> float:
        part = (math.log10(max(time_ns, 1)) - low) / (high - low)
        return _PANEL - _BOTTOM - min(max(part, 0.0), 1.0) * (_PANEL - _BOTTOM - _TOP)

    surface = fit_surface([Point(time.units / all_units, time.rows, float(time.typical_ns)) for time in profiled.alone])
    span = [widths[0] + (widths[-1] - widths[0]) * step / _STEPS for step in range(_STEPS + 1)]
    unit = "percent of the GPU" if profiled.percent else "cores"
    title = f"{profiled.model}: circles alone, bars with other runs, dashed lines fitted"
    parts = [f"<text x='{LEFT}' y='18'>{escape(title)}</text>"]
    for time_ns in ticks(round(10**low), round(10**high))[::2]:
        y = y_of(time_ns)
        parts.append(f"<line class='grid' x1='{LEFT}' x2='{WIDTH - 160}' y1='{y:.1f}' y2='{y:.1f}'/>")
        parts.append(f"<text x='{LEFT - 6}' y='{y + 4:.1f}' text-anchor='end'>{time_ns / 1e6:g} ms</text>")
    for width in widths:
        x = x_of(width)
        parts.append(f"<text x='{x:.1f}' y='{_PANEL - _BOTTOM + 16}' text-anchor='middle'>{width}</text>")
    parts.append(f"<text x='{x_of(widths[-1]):.1f}' y='{_PANEL - 10}' text-anchor='end'>{unit}</text>")
    for units in (knees.curve_units, knees.model_units):
        x = x_of(units)
        parts.append(f"<line class='knee' x1='{x:.1f}' x2='{x:.1f}' y1='{_TOP}' y2='{_PANEL - _BOTTOM}'/>")
    for index, rows in enumerate(profiled.times.batches()):
        colour = _COLOURS[index % len(_COLOURS)]
        fitted = [(units, surface.latency(units / all_units, rows)) for units in span]
        points = " ".join(f"{x_of(units):.1f},{y_of(time_ns):.1f}" for units, time_ns in fitted)
        parts.append(f"<polyline class='fit' stroke='{colour}' points='{points}'/>")
        for time in profiled.alone:
            if time.rows == rows:
                x, y = x_of(time.units), y_of(time.typical_ns)
                parts.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{colour}'>{_title(time, unit)}</circle>")
        for time in profiled.times.times:
            if time.rows == rows:
                x, y = x_of(time.units) - 6, y_of(time.typical_ns) - 1
                position = f"x='{x:.1f}' y='{y:.1f}' width='12' height='2'"
                parts.append(f"<rect {position} fill='{colour}'>{_title(time, unit)}</rect>")
        y = _TOP + 16 * index
        label = f"{rows} row{'s' if rows > 1 else ''}"
        parts.append(f"<text x='{WIDTH - 140}' y='{y + 4}' fill='{colour}'>{label}</text>")
    y = _TOP + 16 * len(profiled.times.batches())
    label = f"knee: measured {knees.curve_units}, fitted {knees.model_units}"
    return [*parts, f"<text x='{WIDTH - 140}' y='{y + 4}' font-size='9'>{label}</text>"]


def _title(time: RunTime, unit: str) -> str:
    rows = f"{time.rows} row{'' if time.rows == 1 else 's'}"
    return f"<title>{rows} on {time.units} {unit}: {time.typical_ns / 1e6:.3f} ms</title>"


def _page(drawing: str, measured: Sequence[tuple[ModelProfile, Knees]], machine: MachineState) -> str:
    names = ", ".join(profiled.model for profiled, _ in measured)
    knees = "; ".join(
        f"{profiled.model} gains little from more than {knees.curve_units}"
        f"{' percent of the GPU' if profiled.percent else ' cores'}"
        for profiled, knees in measured
    )
    return html_page(names or "Run times of models", f"{knees or 'No model could be measured'}.", machine, [drawing])
