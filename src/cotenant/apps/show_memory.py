"""How is `cotenant bench memory` shown? Quotas beside what the device saw, and what was done."""

from __future__ import annotations

from rich.console import Console

from cotenant.apps.show import table
from cotenant.experiment.memory import MemoryReport
from cotenant.format.quantity import round_size


def show_memory(console: Console, report: MemoryReport) -> None:
    """`cotenant bench memory`."""
    rows = [[name, round_size(quota), round_size(report.peaks[name])] for name, quota in report.quotas.items()]
    console.print(table("by the device's own books", ["TENANT", "QUOTA", "MOST EVER HELD"], rows))
    console.print(table("allocations", ["KIND", "TIMES"], [[kind, str(n)] for kind, n in report.allocations.items()]))
    console.print(
        f"{report.operations} operations of {report.processes} processes, {report.kills} of them killed; "
        f"{report.denied} refused for the quota's sake, {report.stale_handles} handles stale, {report.failed} failed"
    )
    console.print(f"past a quota: {report.bypassed_bytes} B; ledger and device apart: {report.leaked_bytes} B")
    console.print(f"an allocation with its free costs {report.added_ns_per_alloc:.0f} ns more than without a ledger")
