"""Output of `cotenant serve profile`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from cotenant.cli.render.tables import table
from cotenant.predict.knee import Knees
from cotenant.serve.commands.profile import ProfileOutcome
from cotenant.serve.model.run_times import RunTime
from cotenant.serve.model.run_times import table as by_units
from cotenant.serve.model_profile_format import ModelProfile
from cotenant.units.instant import SECOND_NS
from cotenant.units.text import counted, round_duration

_BARS: Final = "▁▂▃▄▅▆▇█"
_NOISY: Final = 3
"""Ratio of the 99th percentile to the typical run time above which a note is printed."""


@contextlib.contextmanager
def measuring(console: Console, report: Callable[[str], None]) -> Iterator[Callable[[str, float], None]]:
    """Yield a function that shows progress: a bar for each model on a terminal, a line elsewhere."""
    done = TextColumn("{task.percentage:.0f} %")
    columns = (TextColumn("{task.description}"), BarColumn(), done, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(model: str, part: float) -> None:
            if model not in tasks:
                tasks[model] = bars.add_task(model, total=1.0)
                if not console.is_terminal and part < 1:
                    report(f"{model}: measuring")
            bars.update(tasks[model], completed=part)

        yield progress


def show_profiles(console: Console, outcomes: Sequence[ProfileOutcome]) -> None:
    """Print a table for each model and its knees."""
    for outcome in outcomes:
        if outcome.profiled is None or outcome.knees is None:
            console.print(
                f"{outcome.model}: not measured: {outcome.refused}\n", style="yellow", markup=False, highlight=False
            )
            continue
        _show(console, outcome.profiled, outcome.knees, cached=outcome.cached)


def _show(console: Console, profiled: ModelProfile, knee: Knees, *, cached: bool) -> None:
    batches = profiled.times.batches()
    alone = by_units(profiled.alone)
    rows = []
    for units, times in by_units(profiled.times.times).items():
        max_rows = max(times)
        solo = alone.get(units, {}).get(max_rows)
        concurrent = profiled.times.all_units // units
        rate = max(size * concurrent * SECOND_NS / time.typical_ns for size, time in times.items())
        rows.append(
            [
                f"{units}%" if profiled.percent else str(units),
                *(round_duration(times[size].typical_ns) if size in times else "-" for size in batches),
                round_duration(times[max_rows].high_ns),
                "-" if solo is None else round_duration(solo.typical_ns),
                f"{rate:,.0f}",
                sparkline([times[size].typical_ns / size for size in batches if size in times]),
            ]
        )
    title = f"{profiled.model}: {counted(profiled.runs, 'run')} in {round_duration(profiled.spent_ns)}"
    title += " (stored)" if cached else ""
    first = f"{'SHARE' if profiled.percent else 'CORES'}, ROWS"
    console.print(table(title, [first, *map(str, batches), "P99", "ALONE", "ROWS/S", "PER ROW"], rows))
    curve = {units: times[knee.rows].typical_ns for units, times in alone.items()}
    _print(console, f"{_knee_text(knee, profiled)}  {sparkline(list(curve.values()))}")
    if _is_noisy(profiled):
        _print(
            console,
            "p99 is above three times the median; if the machine was busy, measure again with --force",
        )
    shapes = [f"{name} as {'x'.join(map(str, shape))}" for name, shape in profiled.inputs]
    _print(console, f"measured with {', '.join(shapes) or 'no inputs'}; {profiled.device}\n")


def _is_noisy(profiled: ModelProfile) -> bool:
    return all(time.high_ns > _NOISY * time.typical_ns for time in profiled.times.times)


def _knee_text(knee: Knees, profiled: ModelProfile) -> str:
    def units_text(units: int) -> str:
        return f"{units}% of the GPU" if profiled.percent else counted(units, "core")

    measured = f"knee at {counted(knee.rows, 'row')}: more than {units_text(knee.curve_units)} helps little"
    if knee.curve_units == profiled.times.all_units:
        measured = (
            f"knee at {counted(knee.rows, 'row')}: none, run times improve up to all {units_text(knee.curve_units)}"
        )
    fitted = (
        f"the fitted model gives {knee.model_units} (median error {knee.model_error:.0%}), {knee.distance_units} apart"
    )
    return f"{measured}; {fitted}"


def _print(console: Console, text: str) -> None:
    console.print(text, style="dim", markup=False, highlight=False)


def sparkline(values: Sequence[float]) -> str:
    """Return values as bars of eight heights; the largest has the full height."""
    max_value = max(values, default=0)
    return "".join(_BARS[min(int(8 * value / max_value), 7)] for value in values) if max_value > 0 else ""


def profiles_json(outcomes: Sequence[ProfileOutcome]) -> dict[str, Any]:
    """Return the profiles as JSON."""
    return {"models": [_json(outcome) for outcome in outcomes]}


def _json(outcome: ProfileOutcome) -> dict[str, Any]:
    if outcome.profiled is None or outcome.knees is None:
        return {"model": outcome.model, "refused": outcome.refused}
    knee, profile = outcome.knees, outcome.profiled
    return {
        "model": outcome.model,
        "cached": outcome.cached,
        "device": profile.device,
        "model_hash": profile.model_hash,
        "runs": profile.runs,
        "spent_ns": profile.spent_ns,
        "inputs": dict(profile.inputs),
        "knee": {
            "rows": knee.rows,
            "curve_units": knee.curve_units,
            "model_units": knee.model_units,
            "distance_units": knee.distance_units,
            "model_error": knee.model_error,
        },
        "times": [_cell(cell, profile.alone) for cell in profile.times.times],
    }


def _cell(cell: RunTime, alone: Sequence[RunTime]) -> dict[str, Any]:
    solo = next((time for time in alone if (time.units, time.rows) == (cell.units, cell.rows)), None)
    return {
        "units": cell.units,
        "rows": cell.rows,
        "typical_ns": cell.typical_ns,
        "high_ns": cell.high_ns,
        "alone_ns": None if solo is None else solo.typical_ns,
    }
