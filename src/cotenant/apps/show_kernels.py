"""How do the ways to share a device look side by side in a terminal?"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from cotenant.apps.show import table
from cotenant.apps.simulate_kernels import KernelOutcome


def show_kernels(console: Console, outcome: KernelOutcome) -> None:
    """`cotenant simulate` of a scenario of kernels."""
    columns = ["POLICY", "ONLINE", "SLOW", "DELAY", "P50", "P99", "OFFLINE", "PART", "FILLED", "WAITS"]
    rows: list[list[str | Text]] = [
        [
            one.policy,
            f"{one.online_ms:.1f}",
            f"{one.online_slowdown:.3f}",
            f"{one.online_delay_ratio:.2%}",
            f"{one.latency_p50_ms:.2f}",
            f"{one.latency_p99_ms:.2f}",
            f"{one.offline_kernel_ms:.1f}",
            f"{one.offline_of_time:.1%}",
            str(one.filled),
            str(one.waits),
        ]
        for one in outcome.policies
    ]
    title = (
        f"{outcome.online} on {outcome.device}: {outcome.online_alone_ms:.1f} ms alone, "
        f"{outcome.gap_ratio:.0%} of it gaps"
    )
    console.print(table(title, columns, rows))
    note = "In ms. DELAY: waited for others, of its time alone. PART: OFFLINE, of the time."
    console.print(Text(note, style="dim"))
    for policy, ratio in outcome.fill_vs_oracle.items():
        console.print(Text(f"{policy}: {ratio:.3f} of what the oracle does at the same delay"))
