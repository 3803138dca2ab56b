"""Output of `cotenant explain`."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from cotenant.node.client.explain import Explanation
from cotenant.runner.clock import local_time


def show_explanation(console: Console, explanation: Explanation) -> None:
    """Print the state of a tenant, then each cause with the journal entry that recorded it."""
    console.print(Text(explanation.summary, style="bold"))
    for number, cause in enumerate(explanation.causes, 1):
        console.print(Text(f"{number}. {cause.text}"))
        for detail in cause.details:
            console.print(Text(f"   {detail}"))
        if cause.turn:
            when = f" at {local_time(cause.unix_ns)}" if cause.unix_ns else ""
            entry = f": {cause.entry}" if cause.entry else ", which is no longer in the journal"
            console.print(Text(f"   journal, turn {cause.turn}{when}{entry}", style="dim"))
