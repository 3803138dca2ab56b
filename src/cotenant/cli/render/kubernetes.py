"""Output of `cotenant kubernetes check`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from cotenant.cli.render.tables import table
from cotenant.cluster.kubernetes.check_result import CheckResult
from cotenant.node.client.doctor import Level
from cotenant.units.text import counted

_STYLES: Final = {Level.GOOD: "green", Level.NOTE: "yellow", Level.BAD: "bold red"}


def show_results(console: Console, results: Sequence[CheckResult]) -> None:
    """Print the results as a table, then a remedy for each one that is not good."""
    rows: list[list[str | Text]] = [
        [Text(result.level.value, _STYLES[result.level]), result.check, result.what] for result in results
    ]
    console.print(table("", ["RESULT", "CHECK", "FINDING"], rows, fold=True))
    remedies = [result for result in results if result.remedy]
    for result in remedies:
        console.print(Text.assemble("\n", (f"{result.check}: ", _STYLES[result.level]), result.what))
        console.print(Padding(Text(f"-> {result.remedy}", style="dim"), (0, 0, 0, 3)))
    bad = sum(result.level is Level.BAD for result in results)
    console.print(Text(f"\n{counted(bad, 'problem')} found" if bad else "\nno problem found"))
