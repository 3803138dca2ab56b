"""The remaining time of long commands: it follows the plan, the pace of the steps so far, and the time in the step."""

import io

from rich.console import Console
from rich.progress import Task, TaskID

from cotenant.cli.render.countdown import StepReport, bar_of_steps, remaining_s, remaining_text


def task_at(elapsed_s: float, completed_s: float, began_s: float) -> Task:
    """Return a task with a plan of 100 s that began at 0."""
    now = [0.0]
    task = Task(TaskID(0), "", 100.0, completed_s, _get_time=lambda: now[0], fields={"began": began_s})
    task.start_time = 0.0
    now[0] = elapsed_s
    return task


def test_remaining_time_follows_the_plan_until_a_step_has_ended() -> None:
    assert remaining_s(task_at(0.0, 0.0, 0.0)) == 100
    assert remaining_s(task_at(30.0, 0.0, 0.0)) == 70
    assert remaining_s(task_at(300.0, 0.0, 0.0)) == 0


def test_remaining_time_follows_the_pace_of_the_steps_that_have_ended() -> None:
    assert remaining_s(task_at(40.0, 20.0, 40.0)) == 160, "the steps took twice as long as planned"
    assert remaining_s(task_at(50.0, 20.0, 40.0)) == 150
    assert remaining_s(task_at(10.0, 20.0, 10.0)) == 40


def test_remaining_time_is_minutes_and_seconds() -> None:
    assert [remaining_text(seconds) for seconds in (0.0, 59.6, 61.0)] == ["0:00 left", "1:00 left", "1:01 left"]


def test_steps_are_lines_without_a_terminal_and_have_a_bar_on_one() -> None:
    plain, terminal = io.StringIO(), io.StringIO()
    for file, is_terminal in ((plain, False), (terminal, True)):
        with StepReport(Console(file=file, force_terminal=is_terminal, width=80), [1.0, 2.0]) as report:
            report.step("first")
            report("a line")
            report.step("second")
    assert plain.getvalue().splitlines() == ["first", "a line", "second"]
    assert "step 2 of 2" in terminal.getvalue()
    assert "left" in terminal.getvalue()
    with StepReport(None, [1.0]) as silent:
        silent.step("unseen")


def test_counted_steps_are_reported_once_each() -> None:
    lines: list[str] = []
    with bar_of_steps(Console(file=io.StringIO()), lines.append) as progress:
        progress(1, 2, "one")
        progress(2, 2, "")
    assert lines == ["one"]
