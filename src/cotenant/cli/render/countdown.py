"""Progress of commands that take longer than two seconds: a bar with the remaining time on a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

_REFRESH_PER_S: Final = 2.0
_PACES: Final = (0.25, 8.0)
"""Limits of how much faster or slower than planned the steps so far may make the remaining ones seem."""


class _RemainingColumn(ProgressColumn):
    """The planned time of what is left, at the pace of the steps so far."""

    max_refresh = 0.4

    def render(self, task: Task) -> Text:
        """Return the time as minutes and seconds."""
        return Text(remaining_text(remaining_s(task)), style="progress.remaining")


def remaining_s(task: Task) -> float:
    """Return the remaining time of a task whose total is its planned time, and whose `began` is that of its step."""
    elapsed_s = task.elapsed or 0.0
    in_step_s = max(task.get_time() - task.fields["began"], 0.0)
    before_s = elapsed_s - in_step_s
    pace = before_s / task.completed if task.completed else 1.0
    left_s = ((task.total or 0.0) - task.completed) * min(max(pace, _PACES[0]), _PACES[1])
    return float(max(left_s - in_step_s, 0.0))


def remaining_text(seconds: float) -> str:
    """Return the time as minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02} left"


class StepReport:
    """Prints the steps of a command; on a terminal a bar below them shows how long the remaining ones take."""

    def __init__(self, console: Console | None, planned_s: Sequence[float]) -> None:
        """`planned_s` has the expected duration of each step; without a console nothing is printed."""
        self._console = console
        self._planned_s = list(planned_s)
        is_shown = console is not None and console.is_terminal
        columns = (TextColumn("{task.description}"), BarColumn(), _RemainingColumn())
        self._bars = Progress(
            *columns, console=console, transient=True, disable=not is_shown, refresh_per_second=_REFRESH_PER_S
        )
        self._task: TaskID | None = None
        self._steps = 0

    def __enter__(self) -> Self:
        """Begin the first step."""
        self._bars.start()
        self._task = self._bars.add_task("", total=sum(self._planned_s), began=0.0)
        self._bars.update(self._task, began=self._bars.get_time())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the bar."""
        self._bars.stop()

    def __call__(self, text: str) -> None:
        """Print a line that is not a step."""
        if self._console is not None:
            self._console.print(text, style="dim", highlight=False, soft_wrap=True)

    def step(self, text: str) -> None:
        """Print the beginning of the next step."""
        self(text)
        if self._task is not None:
            done_s = sum(self._planned_s[: self._steps])
            count = f"step {min(self._steps + 1, len(self._planned_s))} of {len(self._planned_s)}"
            self._bars.update(self._task, completed=done_s, description=count, began=self._bars.get_time())
        self._steps += 1


@contextlib.contextmanager
def bar_of_seconds(console: Console, name: str, seconds: float) -> Iterator[Callable[[float], None]]:
    """Yield a function that takes the seconds that have passed, and shows them on a terminal."""
    columns = (TextColumn(name), BarColumn(), _RemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("", total=seconds, began=0.0)

        def passed(passed_s: float) -> None:
            bars.update(task, completed=passed_s, began=bars.get_time())

        passed(0.0)
        yield passed


@contextlib.contextmanager
def bar_of_steps(console: Console, report: Callable[[str], None]) -> Iterator[Callable[[int, int, str], None]]:
    """Yield a function that takes how many of how many steps are done, and a line for readers without a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("")

        def progress(done: int, total: int, text: str) -> None:
            bars.update(task, completed=done, total=total, description=f"{done} of {total}")
            if text and not console.is_terminal:
                report(text)

        yield progress
