"""Wires `cotenant demo`: which story is told, and where its files are."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console

from cotenant.apps.demo_loads import REQUESTS
from cotenant.apps.demo_node import tell_node_story
from cotenant.apps.demo_share import tell_share_story
from cotenant.errors import ConfigError
from cotenant.live.directory import make_directory

MIN_REQUESTS: Final = 10
MAX_REQUESTS: Final = 100_000


def run_demo(console: Console, story: str, keep: str, report: str, requests: int | None, *, as_json: bool) -> int:
    """One story from its beginning to its end; returns 0 when it showed what it should."""
    if story == "node" and report:
        raise ConfigError("--report", report, "only the story of sharing writes one: leave it out")
    if story == "node" and requests is not None:
        raise ConfigError("--requests", requests, "only the story of sharing has some: leave it out")
    if requests is not None and not MIN_REQUESTS <= requests <= MAX_REQUESTS:
        raise ConfigError("--requests", requests, f"choose {MIN_REQUESTS} to {MAX_REQUESTS}")
    if report and not Path(report).absolute().parent.is_dir():
        raise ConfigError("--report", report, "its directory does not exist; choose another place")
    if keep:
        make_directory(Path(keep), "--keep")
    home = Path(keep).absolute() if keep else Path(tempfile.mkdtemp(prefix="cotenant-demo-"))

    def say(text: str) -> None:
        if not as_json:
            console.print(text, style="dim", highlight=False, soft_wrap=True)

    try:
        if story == "node":
            return tell_node_story(console, home, say, as_json=as_json)
        return tell_share_story(
            console, home, Path(report or "demo-report.html"), requests or REQUESTS, say, as_json=as_json
        )
    finally:
        if not keep:
            shutil.rmtree(home, ignore_errors=True)
