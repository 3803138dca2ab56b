"""Output of `cotenant advise`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from cotenant.cli.render.profile import duration, percent, show_fill
from cotenant.cli.render.tables import table
from cotenant.node.client.advise import Advice, MemoryUse
from cotenant.units.text import format_size


def show_advice(console: Console, advices: Sequence[Advice], memory: Sequence[MemoryUse]) -> None:
    """Print the device time and memory that a co-tenant of each profiled program could use."""
    for advice in advices:
        console.print(advice.profile.task, style="bold", markup=False, highlight=False)
        launches = sum(timing.launches for timing in advice.profile.timings)
        idle = percent(advice.idle_ns, advice.observed_ns)
        console.print(
            f"{advice.profile.device or 'an unknown device'}: {launches:,} launches in {duration(advice.observed_ns)}, "
            f"device idle {duration(advice.idle_ns)} ({idle})"
        )
        if advice.measured:
            console.print("every kernel was timed, which slows the program down and lengthens its gaps\n", style="dim")
            show_fill(console, advice.profile)
        else:
            console.print("estimated from samples; to measure gaps run: cotenant advise -- COMMAND", style="dim")
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
        console.print(table("device memory", ["GPU", "PEAK", "TOTAL", "FREE FOR A CO-TENANT"], rows))
    if not advices:
        console.print("no GPU work was recorded; `cotenant doctor` checks whether the hook can be loaded", style="dim")
