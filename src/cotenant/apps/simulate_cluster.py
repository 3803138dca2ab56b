"""Runs a scenario of a cluster: with a bar that says how long it will take, and a page of what came of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from cotenant.apps.report.cluster_page import cluster_page
from cotenant.apps.simulate import read_scenario
from cotenant.domain.instant import SECOND_NS
from cotenant.errors import ConfigError
from cotenant.experiment.cluster import ClusterOutcome, play_cluster
from cotenant.format.scenario_cluster import decode_cluster


def simulate_cluster_file(
    path: Path, seed: int | None, report: str, console: Console, log: Callable[[str], None] | None
) -> ClusterOutcome:
    """The scenario of a file, with another seed if asked; `log` gets a line for each decision."""
    scenario = decode_cluster(read_scenario(path), str(path))
    if seed is not None:
        if seed < 0:
            raise ConfigError("--seed", seed, "choose 0 or more")
        scenario = msgspec.structs.replace(scenario, seed=seed)
    if report:
        _write(report, "")
    with time_shown(console, path.stem) as progress:
        played = play_cluster(scenario, path, say=log, progress=progress)
    if report:
        _write(report, cluster_page(played, path.stem))
    return played.outcome


def _write(report: str, page: str) -> None:
    """Written once before the work, so that a place where nothing can be written is found at once."""
    try:
        Path(report).write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError("--report", report, f"cannot be written: {error.strerror}; choose another file") from None


@contextlib.contextmanager
def time_shown(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar of how much of the world's time has passed, and how long the rest will take; elsewhere ten lines."""
    hours = TextColumn("{task.fields[hours]}")
    columns = (TextColumn("{task.description}"), BarColumn(), hours, TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(what, total=None, hours="")
        tenths = [0]

        def progress(done_ns: int, total_ns: int) -> None:
            said = f"{done_ns / SECOND_NS / 3600:.1f} of {total_ns / SECOND_NS / 3600:.1f} h"
            bars.update(task, completed=done_ns, total=total_ns, hours=said)
            tenth = done_ns * 10 // max(total_ns, 1)
            if not console.is_terminal and tenth != tenths[-1]:
                tenths.append(tenth)
                console.print(f"{what}: {said}", highlight=False)

        yield progress
