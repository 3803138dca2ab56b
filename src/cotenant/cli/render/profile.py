"""Output of `cotenant profile`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Final

from rich.console import Console

from cotenant.cli.render.tables import table
from cotenant.profile.commands import KernelChange, fills, kernel_label
from cotenant.profile.profile import Profile
from cotenant.profile.store import StoredProfile
from cotenant.units.histogram import bucket_middle
from cotenant.units.text import counted, round_duration

GAP_STEPS_NS: Final = (0, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1 << 62)
"""Bounds of the classes of gaps; the last one is larger than any gap."""

_BAR_CELLS: Final = 32
_MIN_CHANGE: Final = 0.05
_LAST_CELLS: Final = 24  # grid and block at the end of a kernel's label, which are not cut
_MIN_CELLS: Final = 12


def show_profiles(console: Console, stored: Sequence[StoredProfile], where: str) -> None:
    """Print a table of the stored profiles."""
    rows = [
        [
            _cut((entry.profile.device or "unknown").removeprefix("NVIDIA "), 14),
            str(entry.profile.runs),
            str(len(entry.profile.timings)),
            duration(entry.profile.device_ns),
            percent(entry.profile.busy_ns, entry.profile.span_ns),
            _when(entry.recorded_ns),
            " ".join(entry.profile.task.split()),
        ]
        for entry in stored
    ]
    columns = ["DEVICE", "RUNS", "KERNELS", "GPU TIME", "BUSY", "RECORDED", "TASK"]
    _fit(console, columns, rows, 0)
    console.print(table(f"{counted(len(stored), 'profile')} in {where}", columns, rows))
    if not rows:
        console.print("no profiles; record one with: cotenant profile record -- COMMAND", style="dim")


def show_profile(console: Console, profile: Profile, limit: int) -> None:
    """Print the kernels of a profile, its gaps, and the idle time that a co-tenant could fill."""
    head = f"{counted(profile.runs, 'run')} on {profile.device or 'an unknown device'}"
    console.print(profile.task, style="bold", markup=False, highlight=False)
    busy = percent(profile.busy_ns, profile.span_ns)
    console.print(
        f"{head}: {duration(profile.span_ns)} observed, device busy {busy}, idle {duration(profile.idle_ns)}\n"
    )
    ordered = sorted(profile.timings, key=lambda timing: -timing.expected_ns)
    rows = [
        [
            percent(timing.expected_ns, profile.device_ns),
            f"{timing.launches:,}",
            duration(timing.mean_device_ns),
            duration(timing.device.quantile(0.99)),
            duration(timing.mean_gap_ns),
            kernel_label(timing),
        ]
        for timing in ordered[:limit]
    ]
    columns = ["SHARE", "LAUNCHES", "MEAN", "P99", "GAP AFTER", "KERNEL <GRID, BLOCK>"]
    _fit(console, columns, rows, _LAST_CELLS)
    console.print(table(f"{counted(len(ordered), 'kernel')} by share of device time", columns, rows))
    if len(ordered) > limit:
        console.print(f"... and {len(ordered) - limit} more; --kernels N lists them", style="dim")
    _show_gaps(console, profile)
    console.print()
    show_fill(console, profile)


def gap_classes(profile: Profile) -> list[tuple[str, int, int]]:
    """Return a label, the number of gaps and their total time for each class of gaps."""
    totals = [[0, 0] for _ in GAP_STEPS_NS[1:]]
    for timing in profile.timings:
        for bucket, times in timing.gap.buckets:
            middle = min(max(bucket_middle(bucket), timing.gap.lowest), timing.gap.highest)
            index = next(i for i, bound_ns in enumerate(GAP_STEPS_NS[1:]) if middle < bound_ns)
            totals[index][0] += times
            totals[index][1] += times * middle
    labels = [f"below {duration(GAP_STEPS_NS[1])}"]
    labels += [f"from {duration(step)}" for step in GAP_STEPS_NS[1:-1]]
    return [(label, count, total_ns) for label, (count, total_ns) in zip(labels, totals, strict=True)]


def _show_gaps(console: Console, profile: Profile) -> None:
    classes = gap_classes(profile)
    max_ns = max((total_ns for _, _, total_ns in classes), default=0)
    all_ns = sum(total_ns for _, _, total_ns in classes)
    rows = [
        [label, f"{count:,}", duration(total_ns), percent(total_ns, all_ns), _bar(total_ns, max_ns)]
        for label, count, total_ns in classes
    ]
    console.print()
    console.print(table("gaps between kernels", ["GAP", "COUNT", "TIME", "SHARE", ""], rows))


def show_fill(console: Console, profile: Profile) -> None:
    """Print the device time that co-tenants with kernels of several lengths would get."""
    rows = [
        [duration(fill.kernel_ns), duration(fill.filled_ns), f"{fill.filled_part:.0%}", f"{fill.slowdown:.1%}"]
        for fill in fills(profile)
    ]
    console.print(
        table("idle time that a co-tenant could fill", ["KERNEL TIME", "FILLED", "OF IDLE TIME", "SLOWDOWN"], rows)
    )


def show_difference(
    console: Console, before: Profile, after: Profile, changes: Sequence[KernelChange], limit: int
) -> None:
    """Print the kernels whose times differ between two profiles."""
    changed = [change for change in changes if change.ratio is None or abs(change.ratio - 1) >= _MIN_CHANGE]
    rows = [
        [
            f"{change.share:.1%}",
            "-" if change.before_ns is None else duration(change.before_ns),
            "-" if change.after_ns is None else duration(change.after_ns),
            _change_text(change),
            change.name,
        ]
        for change in changed[:limit]
    ]
    title = f"{counted(len(changed), 'kernel')} of {len(changes)} differ by {_MIN_CHANGE:.0%} or more"
    columns = ["SHARE", "BEFORE", "AFTER", "CHANGE", "KERNEL <GRID, BLOCK>"]
    _fit(console, columns, rows, _LAST_CELLS)
    console.print(table(title, columns, rows))
    both = ((before, "before"), (after, "after"))
    busy = [
        f"{word}: busy {percent(profile.busy_ns, profile.span_ns)} of {duration(profile.span_ns)}"
        for profile, word in both
    ]
    console.print("; ".join(busy))


def _change_text(change: KernelChange) -> str:
    if change.ratio is None:
        return "new" if change.before_ns is None else "gone"
    return f"{change.ratio - 1:+.1%}"


def duration(nanoseconds: float) -> str:
    """Return a duration in three digits."""
    return round_duration(round(nanoseconds))


def percent(part: float, whole: float) -> str:
    """Return a percentage; a dash if the whole is 0."""
    return f"{part / whole:.1%}" if whole else "-"


def _fit(console: Console, columns: Sequence[str], rows: Sequence[list[str]], tail: int) -> None:
    """Cut the cells of the last column to the remaining width, because kernel names are long."""
    widths = [max([len(columns[i]), *(len(row[i]) for row in rows)]) for i in range(len(columns) - 1)]
    width = max(console.width - sum(widths) - 2 * len(widths), _MIN_CELLS)
    for row in rows:
        row[-1] = _cut(row[-1], width, tail)


def _cut(text: str, cells: int, tail: int = 0) -> str:
    """Return the text, shortened before its last `tail` characters."""
    if len(text) <= cells:
        return text
    kept_cells = min(tail, cells // 2)
    return f"{text[: cells - kept_cells - 1]}\N{HORIZONTAL ELLIPSIS}{text[len(text) - kept_cells :]}"


def _bar(value: float, max_value: float) -> str:
    return "\N{FULL BLOCK}" * round(_BAR_CELLS * value / max_value) if max_value else ""


def _when(unix_ns: int) -> str:
    return dt.datetime.fromtimestamp(unix_ns / 1e9, tz=dt.UTC).strftime("%m-%d %H:%M")
