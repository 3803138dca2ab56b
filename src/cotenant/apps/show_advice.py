"""How does advice look in a terminal?"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from cotenant.apps.advise import Advice, MemoryUse
from cotenant.apps.show import table
from cotenant.apps.show_profile import duration, percent, show_fill
from cotenant.format.quantity import format_size


def show_advice(console: Console, advices: Sequence[Advice], memory: Sequence[MemoryUse]) -> None:
    """`cotenant advise`."""
    for advice in advices:
        console.print(advice.profile.task, style="bold", markup=False, highlight=False)
        launches = sum(timing.launches for timing in advice.profile.timings)
        idle = percent(advice.idle_ns, advice.observed_ns)
        console.print(
            f"{advice.profile.device or 'an unknown device'}: {launches:,} launches in {duration(advice.observed_ns)}, "
            f"device idle {duration(advice.idle_ns)} ({idle})"
        )
        if advice.measured:
            console.print("every kernel was timed, which makes a program slower and its gaps longer\n", style="dim")
            show_fill(console, advice.profile)
        else:
            console.print("estimated from samples; for gaps run: cotenant advise -- COMMAND", style="dim")
    if memory:
        rows = [
            [
                f"{use.gpu} {use.name}",
                format_size(use.peak_bytes),
                format_size(use.memory_bytes),
                format_size(use.headroom_bytes),
            ]
            for use in memory
        ]
        console.print()
        console.print(table("memory", ["GPU", "IT TOOK", "OF", "LEFT FOR A NEIGHBOUR"], rows))
    if not advices:
        console.print("no GPU work was seen; `cotenant doctor` tells whether the hook can see any", style="dim")
