"""Progress of a study: a bar with the remaining time for each part on a terminal, and one line per part elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


@contextlib.contextmanager
def show_parts(
    console: Console, report: Callable[[str], None], to_do: str
) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that takes a part's name, how much of it is done, and its total."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(part: str, done: int, total: int) -> None:
            if part not in tasks:
                tasks[part] = bars.add_task(part, total=total)
                if not console.is_terminal:
                    report(f"{part}: {total} {to_do}")
            bars.update(tasks[part], completed=done)

        yield progress
