"""Terminal tables of study `timelines`."""

from __future__ import annotations

from typing import Final

from rich.console import Console

from cotenant.cli.render.profile import duration
from cotenant.cli.render.tables import table
from cotenant_lab.study.timelines.run import TimelinesReport

_SAID_MOST: Final = 36


def show_timelines(console: Console, report: TimelinesReport) -> None:
    """Print the report of `cotenant-lab study timelines`."""
    rows = [
        [
            one.name[:_SAID_MOST],
            f"{one.median_error:.2%}",
            f"{one.p90_error:.1%}",
            f"{one.source_busy:.0%} / {one.measured_busy:.0%}",
            f"{duration(one.source_gaps_ns[0])} / {duration(one.measured_gaps_ns[0])}",
        ]
        for one in report.timelines
    ]
    console.print("Device times measured by the hook, against the timeline that was replayed:")
    console.print(table("source / measured", ["TIMELINE", "SK OFF", "P90", "BUSY", "GAP P50"], rows))
    for one in report.timelines:
        if one.missing:
            console.print(f"{one.name}: {one.missing} of its {one.kernels + one.missing} kernels were never timed")
    outcome = "met" if all(report.met.values()) else "missed"
    console.print(
        f"median of the medians {report.median_error:.2%}, target {report.target:.0%}: {outcome}; worst: {report.worst}"
    )
