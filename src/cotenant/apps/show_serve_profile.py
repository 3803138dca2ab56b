"""How do the profiles of models look in a terminal?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from cotenant.apps.serve_profile import ProfileOutcome
from cotenant.apps.show import table
from cotenant.domain.instant import SECOND_NS
from cotenant.domain.runtimes import RunTime
from cotenant.domain.runtimes import table as by_units
from cotenant.format.quantity import counted, round_duration
from cotenant.format.runtimes import Profiled
from cotenant.policy.predict.knee import Knees

_BARS: Final = "▁▂▃▄▅▆▇█"
_NOISY: Final = 3
"""Of what is rarely exceeded to what is typical, from where on it is worth a word. Our choice."""


@contextlib.contextmanager
def measuring(console: Console, say: Callable[[str], None]) -> Iterator[Callable[[str, float], None]]:
    """A bar for each model on a terminal, and elsewhere a line."""
    done = TextColumn("{task.percentage:.0f} %")
    columns = (TextColumn("{task.description}"), BarColumn(), done, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(model: str, part: float) -> None:
            if model not in tasks:
                tasks[model] = bars.add_task(model, total=1.0)
                if not console.is_terminal and part < 1:
                    say(f"{model}: measuring")
            bars.update(tasks[model], completed=part)

        yield progress


def show_profiles(console: Console, outcomes: Sequence[ProfileOutcome]) -> None:
    """A table for each model, its curve, and both knees."""
    for one in outcomes:
        if one.profiled is None or one.knees is None:
            console.print(f"{one.model}: not measured: {one.refused}\n", style="yellow", markup=False, highlight=False)
            continue
        _show(console, one.profiled, one.knees, cached=one.cached)


def _show(console: Console, profiled: Profiled, knee: Knees, *, cached: bool) -> None:
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
    title += " (kept from before)" if cached else ""
    first = f"{'SHARE' if profiled.percent else 'CORES'}, ROWS"
    console.print(table(title, [first, *map(str, batches), "RARELY", "ALONE", "ROWS/S", "PER ROW"], rows))
    over = {units: found[knee.rows].typical_ns for units, found in alone.items()}
    _print(console, f"{_knees_in_words(knee, profiled)}  {sparkline(list(over.values()))}")
    if _is_noisy(profiled):
        _print(
            console,
            "one run in a hundred took three times as long as most: was the machine busy? --again measures anew",
        )
    shapes = [f"{name} as {'x'.join(map(str, shape))}" for name, shape in profiled.inputs]
    _print(console, f"measured with {', '.join(shapes) or 'no inputs'}; {profiled.device}\n")


def _is_noisy(profiled: Profiled) -> bool:
    return all(one.high_ns > _NOISY * one.typical_ns for one in profiled.times.times)


def _knees_in_words(knee: Knees, profiled: Profiled) -> str:
    def shown(units: int) -> str:
        return f"{units}% of the GPU" if profiled.percent else counted(units, "core")

    said = f"knee at {counted(knee.rows, 'row')}: more than {shown(knee.curve_units)} hardly helps"
    if knee.curve_units == profiled.times.all_units:
        said = f"knee at {counted(knee.rows, 'row')}: none, it gains up to all {shown(knee.curve_units)}"
    law = f"the fitted law says {knee.model_units} (median error {knee.model_error:.0%}), {knee.distance_units} apart"
    return f"{said}; {law}"


def _print(console: Console, text: str) -> None:
    console.print(text, style="dim", markup=False, highlight=False)


def sparkline(values: Sequence[float]) -> str:
    """Values as bars of eight heights, the largest full."""
    most = max(values, default=0)
    return "".join(_BARS[min(int(8 * value / most), 7)] for value in values) if most > 0 else ""


def profiles_json(outcomes: Sequence[ProfileOutcome]) -> dict[str, Any]:
    """The same for machines."""
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
