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
    for one in outcomes:
        if one.profiled is None or one.knees is None:
            console.print(f"{one.model}: not measured: {one.refused}\n", style="yellow", markup=False, highlight=False)
            continue
        _show(console, one.profiled, one.knees, cached=one.cached)


def _show(console: Console, profiled: ModelProfile, knee: Knees, *, cached: bool) -> None:
    batches = profiled.times.batches()
    alone = by_units(profiled.alone)
    rows = []
    for units, found in by_units(profiled.times.times).items():
        most = max(found)
        solo = alone.get(units, {}).get(most)
        at_once = profiled.times.all_units // units
        rate = max(size * at_once * SECOND_NS / one.typical_ns for size, one in found.items())
        rows.append(
            [
                f"{units}%" if profiled.percent else str(units),
                *(round_duration(found[size].typical_ns) if size in found else "-" for size in batches),
                round_duration(found[most].high_ns),
                "-" if solo is None else round_duration(solo.typical_ns),
                f"{rate:,.0f}",
                sparkline([found[size].typical_ns / size for size in batches if size in found]),
            ]
        )
    title = f"{profiled.model}: {counted(profiled.runs, 'run')} in {round_duration(profiled.spent_ns)}"
    title += " (stored)" if cached else ""
    first = f"{'SHARE' if profiled.percent else 'CORES'}, ROWS"
    console.print(table(title, [first, *map(str, batches), "P99", "ALONE", "ROWS/S", "PER ROW"], rows))
    over = {units: found[knee.rows].typical_ns for units, found in alone.items()}
    _print(console, f"{_knees_in_words(knee, profiled)}  {sparkline(list(over.values()))}")
    if _is_noisy(profiled):
        _print(
            console,
            "p99 is above three times the median; if the machine was busy, measure again with --force",
        )
    shapes = [f"{name} as {'x'.join(map(str, shape))}" for name, shape in profiled.inputs]
    _print(console, f"measured with {', '.join(shapes) or 'no inputs'}; {profiled.device}\n")


def _is_noisy(profiled: ModelProfile) -> bool:
    return all(one.high_ns > _NOISY * one.typical_ns for one in profiled.times.times)


def _knees_in_words(knee: Knees, profiled: ModelProfile) -> str:
    def shown(units: int) -> str:
        return f"{units}% of the GPU" if profiled.percent else counted(units, "core")

    measured = f"knee at {counted(knee.rows, 'row')}: more than {shown(knee.curve_units)} brings little"
    if knee.curve_units == profiled.times.all_units:
        measured = f"knee at {counted(knee.rows, 'row')}: none, run times improve up to all {shown(knee.curve_units)}"
    fitted = (
        f"the fitted model gives {knee.model_units} (median error {knee.model_error:.0%}), {knee.distance_units} apart"
    )
    return f"{measured}; {fitted}"


def _print(console: Console, text: str) -> None:
    console.print(text, style="dim", markup=False, highlight=False)


def sparkline(values: Sequence[float]) -> str:
    """Return values as bars of eight heights; the largest has the full height."""
    most = max(values, default=0)
    return "".join(_BARS[min(int(8 * value / most), 7)] for value in values) if most > 0 else ""


def profiles_json(outcomes: Sequence[ProfileOutcome]) -> dict[str, Any]:
    """Return the profiles as JSON."""
    return {"models": [_json(one) for one in outcomes]}


def _json(one: ProfileOutcome) -> dict[str, Any]:
    if one.profiled is None or one.knees is None:
        return {"model": one.model, "refused": one.refused}
    knee, found = one.knees, one.profiled
    return {
        "model": one.model,
        "cached": one.cached,
        "device": found.device,
        "model_hash": found.model_hash,
        "runs": found.runs,
        "spent_ns": found.spent_ns,
        "inputs": dict(found.inputs),
        "knee": {
            "rows": knee.rows,
            "curve_units": knee.curve_units,
            "model_units": knee.model_units,
            "distance_units": knee.distance_units,
            "model_error": knee.model_error,
        },
        "times": [_cell(cell, found.alone) for cell in found.times.times],
    }


def _cell(cell: RunTime, alone: Sequence[RunTime]) -> dict[str, Any]:
    solo = next((one for one in alone if (one.units, one.rows) == (cell.units, cell.rows)), None)
    return {
        "units": cell.units,
        "rows": cell.rows,
        "typical_ns": cell.typical_ns,
        "high_ns": cell.high_ns,
        "alone_ns": None if solo is None else solo.typical_ns,
    }
