"""How does an explanation look in a terminal?"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from cotenant.apps.explain import Explanation
from cotenant.live.clock import time_of_day


def show_explanation(console: Console, explanation: Explanation) -> None:
    """`cotenant explain`: where it stands, then each reason with the journal's entry behind it."""
    console.print(Text(explanation.summary, style="bold"))
    for number, cause in enumerate(explanation.causes, 1):
        console.print(Text(f"{number}. {cause.text}"))
        for detail in cause.details:
            console.print(Text(f"   {detail}"))
        if cause.turn:
            when = f" at {time_of_day(cause.unix_ns)}" if cause.unix_ns else ""
            entry = f": {cause.entry}" if cause.entry else ", which is no longer on record"
            console.print(Text(f"   journal, turn {cause.turn}{when}{entry}", style="dim"))
