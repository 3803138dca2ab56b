"""Output of `cotenant simulate` for a kernel scenario."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from cotenant.cli.render.tables import table
from cotenant.simulate.kernels_scenario import KernelOutcome


def show_kernels(console: Console, outcome: KernelOutcome) -> None:
    """Print a table that compares the sharing policies of a kernel scenario."""
    columns = ["POLICY", "ONLINE", "SLOWDOWN", "DELAY", "P50", "P99", "OFFLINE", "SHARE", "FILLED", "WAITS"]
    rows: list[list[str | Text]] = [
        [
            policy.policy,
            f"{policy.online_ms:.1f}",
            f"{policy.online_slowdown:.3f}",
            f"{policy.online_delay_ratio:.2%}",
            f"{policy.latency_p50_ms:.2f}",
            f"{policy.latency_p99_ms:.2f}",
            f"{policy.offline_kernel_ms:.1f}",
            f"{policy.offline_of_time:.1%}",
            str(policy.filled),
            str(policy.waits),
        ]
        for policy in outcome.policies
    ]
    title = (
        f"{outcome.online} on {outcome.device}: {outcome.online_alone_ms:.1f} ms alone, "
        f"{outcome.gap_ratio:.0%} of it gaps"
    )
    console.print(table(title, columns, rows))
    note = "In ms. DELAY: wait for other tenants relative to the run alone. SHARE: offline kernel time of the run time."
    console.print(Text(note, style="dim"))
    for name, ratio in outcome.fill_vs_oracle.items():
        console.print(Text(f"{name}: fills {ratio:.3f} of what the oracle fills at the same delay"))
