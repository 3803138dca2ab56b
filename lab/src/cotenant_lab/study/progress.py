"""Progress of a study: a bar for each part on a terminal, and a line for each quarter of a part elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


@contextlib.contextmanager
def show_parts(
    console: Console, report: Callable[[str], None], to_do: str
) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that takes a part's name, how much of it is done, and its total."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}
        quarters: dict[str, int] = {}

        def progress(part: str, done: int, total: int) -> None:
            if part not in tasks:
                tasks[part] = bars.add_task(part, total=total)
                if not console.is_terminal:
                    report(f"{part}: {total} {to_do}")
            elif not console.is_terminal and done * 4 // max(total, 1) > quarters[part]:
                report(f"{part}: {done} of {total}")
            quarters[part] = done * 4 // max(total, 1)
            bars.update(tasks[part], completed=done)

        yield progress
