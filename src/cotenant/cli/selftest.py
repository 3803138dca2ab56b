"""`cotenant selftest`: check hook, gate, quotas and node in front of the driver of this machine."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from cotenant.cli.command import OUTPUT, configure, group, output, print_json, print_line
from cotenant.cli.parser import Parser
from cotenant.cli.render.countdown import bar_of_steps
from cotenant.cli.render.tables import table
from cotenant.errors import ConfigError
from cotenant.selftest.checks import CHECKS, run_checks
from cotenant.selftest.report import CheckResult, CheckStatus, SelftestReport, make_report, write_report
from cotenant.selftest.site import SelftestSite

_STYLES: Final = {CheckStatus.PASSED: "green", CheckStatus.FAILED: "bold red", CheckStatus.SKIPPED: "yellow"}


def configure_selftest(parser: Parser) -> None:
    configure(parser, _selftest, json=True)
    about = "The GPU to test by its number, or soft for a software GPU of its own (default 0)."
    parser.add_argument("--gpu", default="0", metavar="N", help=about)
    about = "Write a report without secrets to this file, which you can send to the developers."
    group(parser, OUTPUT).add_argument("--report", default="", metavar="FILE", help=about)


def _selftest(options: argparse.Namespace) -> int:
    path = _report_path(options.report)
    results: list[CheckResult] = []
    with SelftestSite(options.gpu) as site:
        gpu = site.run("describe")
        print_line(f"testing {gpu['name']}; driver version {_version(gpu)}")
        with bar_of_steps(Console(stderr=True), print_line) as progress:
            for result in run_checks(site, CHECKS):
                results.append(result)
                line = f"{len(results)} of {len(CHECKS)}, {result.name}: {result.status.value}"
                progress(len(results), len(CHECKS), line)
        report = make_report(results, gpu, is_software_gpu=site.is_software_gpu)
    if path is not None:
        write_report(path, report)
    if options.json:
        print_json(report)
    else:
        show_report(report)
        if path is not None:
            print_line(f"the report is in {path}; it contains no names of users, hosts or files")
    return 1 if report.failed else 0


def _report_path(text: str) -> Path | None:
    if not text:
        return None
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ConfigError("--report", text, "name a file in a directory that exists")
    return path


def _version(gpu: Mapping[str, Any]) -> str:
    number: int = gpu["driver_version"]
    return f"{number // 1000}.{number % 1000 // 10}"


def show_report(report: SelftestReport) -> None:
    """Print the report as a table, and what failed in full."""
    rows: list[list[str | Text]] = [
        [check.name, Text(check.status.value, style=_STYLES[check.status]), check.detail or check.about]
        for check in report.checks
    ]
    console = output()
    console.print(table("self-test", ["CHECK", "RESULT", "DETAIL"], rows, fold=True))
    console.print(f"{report.passed} passed, {report.failed} failed, {report.skipped} skipped")
    if report.is_software_gpu:
        console.print("this was a software GPU: nothing is known about hardware")
