"""`cotenant demo`: its flags, and the directories of its scenarios."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console

from cotenant.cli.command import OUTPUT, configure, group, output
from cotenant.cli.parser import Parser
from cotenant.errors import ConfigError
from cotenant.node.directories import make_directory

MIN_REQUESTS: Final = 10
MAX_REQUESTS: Final = 100_000
DEFAULT_REPORT: Final = "demo-report.html"


def configure_demo(parser: Parser) -> None:
    configure(parser, _demo, json=True)
    about = "share (default): a service and a training job on one software GPU; node: joins, kills and a replay."
    parser.add_argument("--story", choices=["share", "node"], default="share", metavar="share|node", help=about)
    about = "share: requests to the service in each run (default 480)."
    parser.add_argument("--requests", type=int, default=None, metavar="N", help=about)
    parser.add_argument("--keep", default="", metavar="DIR", help="Run in this directory and do not delete it.")
    about = "share: do not serve a page that shows the run live (default with --json)."
    parser.add_argument("--no-web", action="store_true", help=about)
    about = "share: HTML report to write (default demo-report.html)."
    group(parser, OUTPUT).add_argument("--report", default="", metavar="FILE", help=about)


def _demo(options: argparse.Namespace) -> int:
    return run_demo(
        output(),
        options.story,
        options.keep,
        options.report,
        options.requests,
        as_json=options.json,
        with_page=not (options.no_web or options.json),
    )


def run_demo(
    console: Console, story: str, keep: str, report: str, requests: int | None, *, as_json: bool, with_page: bool
) -> int:
    """Run one scenario of the demo; return 0 if it had the expected results."""
    from cotenant.cli.demo.node import demonstrate_node
    from cotenant.cli.demo.sharing import demonstrate_sharing
    from cotenant.cli.demo.workloads import REQUESTS
    from cotenant.cli.render.html.page import check_report

    if story == "node" and report:
        raise ConfigError("--report", report, "only --story share writes a report; omit --report")
    if story == "node" and requests is not None:
        raise ConfigError("--requests", requests, "only --story share sends requests; omit --requests")
    if requests is not None and not MIN_REQUESTS <= requests <= MAX_REQUESTS:
        raise ConfigError("--requests", requests, f"choose {MIN_REQUESTS} to {MAX_REQUESTS}")
    if story == "share":
        check_report("--report", report or DEFAULT_REPORT)
    if keep:
        make_directory(Path(keep), "--keep")
    home = Path(keep).absolute() if keep else Path(tempfile.mkdtemp(prefix="cotenant-demo-"))

    def report_step(text: str) -> None:
        if not as_json:
            console.print(text, style="dim", highlight=False, soft_wrap=True)

    try:
        if story == "node":
            return demonstrate_node(console, home, report_step, as_json=as_json)
        return demonstrate_sharing(
            console,
            home,
            Path(report or DEFAULT_REPORT),
            requests or REQUESTS,
            as_json=as_json,
            with_page=with_page,
        )
    finally:
        if not keep:
            shutil.rmtree(home, ignore_errors=True)
