"""How do the profiles of models look drawn? A run's time against units, for each batch, with the law and the knees."""

from __future__ import annotations

import contextlib
import html
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from cotenant.apps.pyplot import drawn_with, need_matplotlib
from cotenant.apps.serve_profile import ProfileOutcome
from cotenant.errors import ConfigError
from cotenant.format.runtimes import Profiled
from cotenant.policy.predict.knee import Knees
from cotenant.policy.predict.latency import Point, fit_surface

_STEPS: Final = 100


def plotter(file: str) -> Callable[[Sequence[ProfileOutcome]], None]:
    """What draws into this file; ConfigError now, rather than after the work, where it cannot be done."""
    path = Path(file)
    if path.suffix not in (".svg", ".html"):
        raise ConfigError("--plot", file, "name a file that ends in .svg or .html")
    need_matplotlib("--plot", file)
    try:
        path.touch()
    except OSError as error:
        raise ConfigError("--plot", file, f"cannot be written: {error.strerror}; choose another") from None

    def draw(outcomes: Sequence[ProfileOutcome]) -> None:
        drawn = _drawn([(one.profiled, one.knees) for one in outcomes if one.profiled and one.knees])
        path.write_text(drawn if path.suffix == ".svg" else _page(drawn, outcomes), encoding="utf-8")

    return draw


def _drawn(found: Sequence[tuple[Profiled, Knees]]) -> str:
    into = io.StringIO()
    with drawn_with() as pyplot:
        figure, axes = pyplot.subplots(max(len(found), 1), 1, figsize=(8, 4.2 * max(len(found), 1)), squeeze=False)
        for axis, (profiled, knee) in zip(axes[:, 0], found, strict=False):
            _panel(axis, profiled, knee)
        figure.tight_layout()
        with contextlib.closing(into):
            figure.savefig(into, format="svg", metadata={"Date": None})
            pyplot.close(figure)
            return into.getvalue()


def _panel(axis: Any, profiled: Profiled, knee: Knees) -> None:
    all_units = profiled.times.all_units
    surface = fit_surface([Point(one.units / all_units, one.rows, float(one.typical_ns)) for one in profiled.alone])
    widths = profiled.times.widths()
    span = [widths[0] + (widths[-1] - widths[0]) * step / _STEPS for step in range(_STEPS + 1)]
    for rows in profiled.times.batches():
        alone = [(one.units, one.typical_ns / 1e6) for one in profiled.alone if one.rows == rows]
        loaded = [(one.units, one.typical_ns / 1e6) for one in profiled.times.times if one.rows == rows]
        (line,) = axis.plot(*zip(*alone, strict=True), "o", ms=5, label=f"{rows} row{'s' if rows > 1 else ''}")
        axis.plot(*zip(*loaded, strict=True), "_", ms=12, mew=2, color=line.get_color())
        law = [surface.latency(units / all_units, rows) / 1e6 for units in span]
        axis.plot(span, law, "--", lw=1, color=line.get_color())
    axis.axvline(knee.curve_units, color="#444444", lw=1, label=f"knee of the curve: {knee.curve_units}")
    axis.axvline(knee.model_units, color="#444444", lw=1, ls=":", label=f"of the law: {knee.model_units}")
    axis.set_xticks(widths)
    axis.set_yscale("log")
    axis.set_xlabel("percent of the GPU" if profiled.percent else "cores")
    axis.set_ylabel("a run, ms")
    axis.set_title(f"{profiled.model}: dots alone, bars with the rest of the device busy, dashed the fitted law")
    axis.legend(fontsize=8)


def _page(drawing: str, outcomes: Sequence[ProfileOutcome]) -> str:
    names = html.escape(", ".join(one.model for one in outcomes if one.profiled))
    style = "body{font-family:sans-serif;margin:2em;max-width:60em}svg{width:100%;height:auto}"
    picture = drawing[drawing.index("<svg") :]
    return (
        f'<!doctype html><meta charset="utf-8"><title>{names}</title><style>{style}</style><h1>{names}</h1>{picture}\n'
    )
