"""Terminal tables of study `timelines`."""

from __future__ import annotations

from typing import Final

from rich.console import Console

from cotenant.cli.render.profile import duration
from cotenant.cli.render.tables import table
from cotenant_lab.study.timelines.run import TimelinesReport

_NAME_LIMIT: Final = 36


def show_timelines(console: Console, report: TimelinesReport) -> None:
    """Print the report of `cotenant-lab study timelines`."""
    rows = [
        [
            timeline.name[:_NAME_LIMIT],
            f"{timeline.median_error:.2%}",
            f"{timeline.p90_error:.1%}",
            f"{timeline.source_busy:.0%} / {timeline.measured_busy:.0%}",
            f"{duration(timeline.source_gaps_ns[0])} / {duration(timeline.measured_gaps_ns[0])}",
        ]
        for timeline in report.timelines
    ]
    console.print("Device times measured by the hook, against the timeline that was replayed:")
    console.print(table("source / measured", ["TIMELINE", "SK OFF", "P90", "BUSY", "GAP P50"], rows))
    for timeline in report.timelines:
        if timeline.missing:
            total = timeline.kernels + timeline.missing
            console.print(f"{timeline.name}: {timeline.missing} of its {total} kernels were never timed")
    outcome = "met" if all(report.met.values()) else "missed"
    console.print(
        f"median of the medians {report.median_error:.2%}, target {report.target:.0%}: {outcome}; worst: {report.worst}"
    )
