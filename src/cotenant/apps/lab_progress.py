"""How far is a lab? A bar for each part on a terminal, and elsewhere a line."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


@contextlib.contextmanager
def parts_shown(console: Console, say: Callable[[str], None], to_do: str) -> Iterator[Callable[[str, int, int], None]]:
    """What a lab calls with a part's name, how much of it is done, and how much there is."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
                if not console.is_terminal:
                    say(f"{what}: {total} {to_do}")
            bars.update(tasks[what], completed=done)

        yield progress
