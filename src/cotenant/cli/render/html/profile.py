"""HTML page of a kernel profile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from cotenant.cli.render.profile import duration, gap_classes, percent
from cotenant.profile.commands import fills, kernel_label
from cotenant.profile.profile import Profile

_STYLE: Final = """
:root { color-scheme: light dark; --bar: #3d7ea6; --line: #8884; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; overflow-wrap: anywhere; } h2 { font-size: 1.05rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: right; padding: .25rem .6rem; }
tr + tr { border-top: 1px solid var(--line); } th:last-child, td:last-child { text-align: left; width: 45%; }
td:last-child { overflow-wrap: anywhere; font-family: ui-monospace, monospace; font-size: .85rem; }
.bar { background: var(--bar); height: .8rem; border-radius: 2px; }
.split { display: flex; height: 1.6rem; border-radius: 4px; overflow: hidden; background: var(--line); }
.split div { background: var(--bar); } p.note { opacity: .75; }
"""


def profile_page(profile: Profile) -> str:
    """Return the HTML page."""
    busy = percent(profile.busy_ns, profile.span_ns)
    fraction = profile.busy_ns / profile.span_ns if profile.span_ns else 0.0
    head = (
        f"{profile.runs} runs on {profile.device or 'an unknown device'}: {duration(profile.span_ns)} observed, "
        f"device busy {busy}, idle {duration(profile.idle_ns)}"
    )
    return "\n".join(
        [
            "<!doctype html><html lang=en><meta charset=utf-8>",
            "<meta name=viewport content='width=device-width'>",
            f"<title>{escape(profile.task)}: profile</title><style>{_STYLE}</style>",
            f"<h1>{escape(profile.task)}</h1><p>{escape(head)}</p>",
            f"<div class=split title='busy {escape(busy)}'><div style='width:{100 * fraction:.2f}%'></div></div>",
            *_kernels(profile),
            *_gaps(profile),
            *_fill(profile),
            "</html>",
        ]
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    yield "<table><tr>" + "".join(f"<th>{column}</th>" for column in columns) + "</tr>"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>"
    yield "</table>"


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
    yield from _table(["share", "launches", "mean", "p99", "gap after", "kernel &lt;grid, block&gt;"], rows)


def _gaps(profile: Profile) -> Iterable[str]:
    classes = gap_classes(profile)
    max_ns = max((total_ns for _, _, total_ns in classes), default=0) or 1
    yield "<h2>Gaps between kernels</h2>"
    rows = (
        [
            label,
            f"{count:,}",
            duration(total_ns),
            f"<div class=bar style='width:{100 * total_ns / max_ns:.1f}%'></div>",
        ]
        for label, count, total_ns in classes
    )
    yield from _table(["gap", "count", "time", "of all gap time"], rows)


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
    yield from _table(
        ["its kernels take", "device time it gets", "slowdown of this program", "share of idle time"], rows
    )
    note = "Predicted from the recorded gaps: a kernel is launched into a gap if three of four such gaps were longer."
    yield f"<p class=note>{note}</p>"
