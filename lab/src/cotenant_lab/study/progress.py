"""Progress of a study: a bar with the remaining time for each part on a terminal.

Elsewhere it is a line for each part, and one every half minute.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from cotenant.runner.clock import monotonic_ns
from cotenant.units.instant import SECOND_NS

_EVERY_NS: Final = 30 * SECOND_NS


@contextlib.contextmanager
def show_parts(
    console: Console, report: Callable[[str], None], to_do: str
) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that takes a part's name, how much of it is done, and its total."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}
        begin_ns = reported_ns = monotonic_ns()

        def progress(part: str, done: int, total: int) -> None:
            nonlocal reported_ns
            now_ns = monotonic_ns()
            if part not in tasks:
                tasks[part] = bars.add_task(part, total=total)
                if not console.is_terminal:
                    report(f"{part}: {total} {to_do}")
            elif not console.is_terminal and (now_ns - reported_ns >= _EVERY_NS or done >= total):
                reported_ns = now_ns
                report(f"{part}: {done} of {total} after {(now_ns - begin_ns) / SECOND_NS:.0f} s")
            bars.update(tasks[part], completed=done)

        yield progress
