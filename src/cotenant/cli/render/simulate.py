"""Output of `cotenant simulate` and `cotenant replay` for a node."""

from __future__ import annotations

import msgspec
from rich.console import Console

from cotenant.cli.render.tables import table
from cotenant.simulate.node import Outcome
from cotenant.simulate.replay import ReplayReport
from cotenant.units.text import counted


def show_replay(console: Console, report: ReplayReport) -> None:
    """Print whether a replay reproduced every action of the journal."""
    if report.reproduced:
        torn = f"; an incomplete entry of {report.torn_bytes} bytes at the end was ignored" if report.torn_bytes else ""
        counts = f"{counted(report.turns, 'turn')}, {counted(report.actions, 'action')}"
        console.print(f"{counts}: all reproduced{torn}", highlight=False)
    elif report.damage:
        console.print(f"{report.file}: {report.damage}", style="bold red", highlight=False, markup=False)
    else:
        console.print(f"turn {report.diverged_at} has a different result", style="bold red", highlight=False)
        console.print(f"recorded: {report.recorded}\nnow:      {report.actual}", highlight=False, markup=False)


def show_outcome(console: Console, outcome: Outcome) -> None:
    """Print the counts of a simulated node."""
    counts = {name: value for name, value in msgspec.structs.asdict(outcome).items() if name != "endings"}
    rows = [[name.replace("_", " "), str(value)] for name, value in counts.items()]
    rows += [[f"ended: {ending}", str(count)] for ending, count in outcome.endings.items()]
    console.print(table("outcome", ["COUNTER", "COUNT"], rows))
