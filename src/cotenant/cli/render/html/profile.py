"""HTML page of a kernel profile."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

from cotenant.cli.render.html.page import html_page, scrolling_table
from cotenant.cli.render.profile import duration, gap_classes, percent
from cotenant.profile.commands import fills, kernel_label
from cotenant.profile.profile import Profile
from cotenant.runner.machine import MachineState

_STYLE: Final = """
:root { --bar: #3d7ea6; } th, td { text-align: right; }
th:last-child, td:last-child { text-align: left; width: 45%; }
td:last-child { overflow-wrap: anywhere; font-family: ui-monospace, monospace; font-size: .85rem; }
.bar { background: var(--bar); height: .8rem; border-radius: 2px; }
.split { display: flex; height: 1.6rem; border-radius: 4px; overflow: hidden; background: var(--line); }
.split div { background: var(--bar); }
"""


def profile_page(profile: Profile, machine: MachineState) -> str:
    """Return the HTML page."""
    busy = percent(profile.busy_ns, profile.span_ns)
    fraction = profile.busy_ns / profile.span_ns if profile.span_ns else 0.0
    head = (
        f"{profile.runs} runs on {profile.device or 'an unknown device'}: {duration(profile.span_ns)} observed, "
        f"device busy {busy}, idle {duration(profile.idle_ns)}"
    )
    return html_page(
        profile.task,
        _conclusion(profile),
        machine,
        [
            f"<p>{escape(head)}</p>",
            f"<div class=split title='busy {escape(busy)}'><div style='width:{100 * fraction:.2f}%'></div></div>",
            *_kernels(profile),
            *_gaps(profile),
            *_fill(profile),
        ],
        _STYLE,
        is_measured=False,
    )


def _conclusion(profile: Profile) -> str:
    """Return in one sentence what the program leaves to a co-tenant, for kernels that fill most of its idle time."""
    busy = percent(profile.busy_ns, profile.span_ns)
    best = max(fills(profile), key=lambda fill: fill.filled_ns, default=None)
    if best is None or not best.filled_ns:
        return (
            f"{profile.task} keeps the device busy {busy} of the time and leaves no gaps that a co-tenant could fill."
        )
    return (
        f"{profile.task} keeps the device busy {busy} of the time; a co-tenant with kernels of "
        f"{duration(best.kernel_ns)} could use {best.filled_part:.0%} of the rest and slow it by {best.slowdown:.1%}."
    )


def _kernels(profile: Profile) -> Iterable[str]:
    ordered = sorted(profile.timings, key=lambda timing: -timing.expected_ns)
    yield f"<h2>{len(ordered)} kernels by share of device time</h2>"
    rows = (
        [
            percent(timing.expected_ns, profile.device_ns),
            f"{timing.launches:,}",
            duration(timing.mean_device_ns),
            duration(timing.device.quantile(0.99)),
            duration(timing.mean_gap_ns),
            escape(kernel_label(timing)),
        ]
        for timing in ordered
    )
    yield from scrolling_table(["share", "launches", "mean", "p99", "gap after", "kernel &lt;grid, block&gt;"], rows)


def _gaps(profile: Profile) -> Iterable[str]:
    classes = gap_classes(profile)
    max_ns = max((total_ns for _, _, total_ns in classes), default=0) or 1
    yield "<h2>Gaps between kernels</h2>"
    rows = (
        [
            label,
            f"{count:,}",
            duration(total_ns),
            f"<div class=bar title='{duration(total_ns)}' style='width:{100 * total_ns / max_ns:.1f}%'></div>",
        ]
        for label, count, total_ns in classes
    )
    yield from scrolling_table(["gap", "count", "time", "of all gap time"], rows)


def _fill(profile: Profile) -> Iterable[str]:
    yield "<h2>Idle time that a co-tenant could fill</h2>"
    rows = (
        [
            duration(fill.kernel_ns),
            duration(fill.filled_ns),
            f"{fill.slowdown:.1%}",
            f"<div class=bar style='width:{100 * min(fill.filled_part, 1):.1f}%'></div> {fill.filled_part:.0%}",
        ]
        for fill in fills(profile)
    )
    yield from scrolling_table(
        ["its kernels take", "device time it gets", "slowdown of this program", "share of idle time"], rows
    )
    note = "Predicted from the recorded gaps: a kernel is launched into a gap if three of four such gaps were longer."
    yield f"<p class=note>{note}</p>"
