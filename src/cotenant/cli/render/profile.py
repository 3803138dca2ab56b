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
_CHANGED: Final = 0.05
_LAST_CELLS: Final = 24  # grid and block at the end of a kernel's label, which are not cut
_MIN_CELLS: Final = 12


def show_profiles(console: Console, kept: Sequence[StoredProfile], where: str) -> None:
    """Print a table of the stored profiles."""
    rows = [
        [
            _cut((one.profile.device or "unknown").removeprefix("NVIDIA "), 14),
            str(one.profile.runs),
            str(len(one.profile.timings)),
            duration(one.profile.device_ns),
            percent(one.profile.busy_ns, one.profile.span_ns),
            _when(one.recorded_ns),
            " ".join(one.profile.task.split()),
        ]
        for one in kept
    ]
    columns = ["DEVICE", "RUNS", "KERNELS", "GPU TIME", "BUSY", "RECORDED", "TASK"]
    _fit(console, columns, rows, 0)
    console.print(table(f"{counted(len(kept), 'profile')} in {where}", columns, rows))
    if not rows:
        console.print("there are none; record one with: cotenant profile record -- COMMAND", style="dim")


def show_profile(console: Console, profile: Profile, most: int) -> None:
    """Print the kernels of a profile, its gaps, and what a co-tenant could fill."""
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
        for timing in ordered[:most]
    ]
    columns = ["SHARE", "LAUNCHES", "MEAN", "P99", "GAP AFTER", "KERNEL <GRID, BLOCK>"]
    _fit(console, columns, rows, _LAST_CELLS)
    console.print(table(f"{counted(len(ordered), 'kernel')} by share of device time", columns, rows))
    if len(ordered) > most:
        console.print(f"... and {len(ordered) - most} more; --kernels N lists them", style="dim")
    _show_gaps(console, profile)
    console.print()
    show_fill(console, profile)


def gap_classes(profile: Profile) -> list[tuple[str, int, int]]:
    """Return a label, the number of gaps and their total time for each class of gaps."""
    found = [[0, 0] for _ in GAP_STEPS_NS[1:]]
    for timing in profile.timings:
        for bucket, times in timing.gap.buckets:
            middle = min(max(bucket_middle(bucket), timing.gap.lowest), timing.gap.highest)
            place = next(i for i, above in enumerate(GAP_STEPS_NS[1:]) if middle < above)
            found[place][0] += times
            found[place][1] += times * middle
    labels = [f"below {duration(GAP_STEPS_NS[1])}"]
    labels += [f"from {duration(step)}" for step in GAP_STEPS_NS[1:-1]]
    return [(label, count, total_ns) for label, (count, total_ns) in zip(labels, found, strict=True)]


def _show_gaps(console: Console, profile: Profile) -> None:
    classes = gap_classes(profile)
    most_ns = max((total_ns for _, _, total_ns in classes), default=0)
    all_ns = sum(total_ns for _, _, total_ns in classes)
    rows = [
        [label, f"{count:,}", duration(total_ns), percent(total_ns, all_ns), _bar(total_ns, most_ns)]
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
    console.print(table("what a co-tenant could fill", ["KERNEL TIME", "FILLED", "OF IDLE TIME", "SLOWDOWN"], rows))


def show_difference(
    console: Console, before: Profile, after: Profile, changes: Sequence[KernelChange], most: int
) -> None:
    """Print the kernels whose times differ between two profiles."""
    changed = [change for change in changes if change.ratio is None or abs(change.ratio - 1) >= _CHANGED]
    rows = [
        [
            f"{change.share:.1%}",
            "-" if change.before_ns is None else duration(change.before_ns),
            "-" if change.after_ns is None else duration(change.after_ns),
            _change_text(change),
            change.name,
        ]
        for change in changed[:most]
    ]
    title = f"{counted(len(changed), 'kernel')} of {len(changes)} differ by {_CHANGED:.0%} or more"
    columns = ["SHARE", "BEFORE", "AFTER", "CHANGE", "KERNEL <GRID, BLOCK>"]
    _fit(console, columns, rows, _LAST_CELLS)
    console.print(table(title, columns, rows))
    both = ((before, "before"), (after, "after"))
    busy = [f"{word}: busy {percent(one.busy_ns, one.span_ns)} of {duration(one.span_ns)}" for one, word in both]
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
    """Cut the last cells to the width that the others leave, because kernel names are long."""
    widest = [max([len(columns[i]), *(len(row[i]) for row in rows)]) for i in range(len(columns) - 1)]
    width = max(console.width - sum(widest) - 2 * len(widest), _MIN_CELLS)
    for row in rows:
        row[-1] = _cut(row[-1], width, tail)


def _cut(text: str, cells: int, tail: int = 0) -> str:
    """Return the text, shortened before its last `tail` characters."""
    if len(text) <= cells:
        return text
    kept = min(tail, cells // 2)
    return f"{text[: cells - kept - 1]}\N{HORIZONTAL ELLIPSIS}{text[len(text) - kept :]}"


def _bar(value: float, most: float) -> str:
    return "\N{FULL BLOCK}" * round(_BAR_CELLS * value / most) if most else ""


def _when(unix_ns: int) -> str:
    return dt.datetime.fromtimestamp(unix_ns / 1e9, tz=dt.UTC).strftime("%m-%d %H:%M")
