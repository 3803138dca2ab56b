"""`cotenant trace`: record launches of programs and work of software GPUs for some time, and write a timeline."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path
from typing import Final

from rich.console import Console

from cotenant.cli.command import configure, group, load_own, output, print_json, print_line
from cotenant.cli.parser import Parser
from cotenant.cli.render.countdown import bar_of_seconds
from cotenant.errors import ConfigError
from cotenant.node.directories import Directories
from cotenant.timeline.recorder import reads_for, record, write
from cotenant.trace.recording import Recording

DEFAULT_SECONDS: Final = 5.0
_MAX_SECONDS: Final = 600.0


def configure_trace(parser: Parser) -> None:
    configure(parser, _trace, "directories", json=True)
    span = group(parser, "Time").add_mutually_exclusive_group()
    span.add_argument("--seconds", default=None, metavar="N", help="Record the next N seconds (default 5).")
    span.add_argument("--last", action="store_true", help="Write the buffered records of the time before.")
    format_group = group(parser, "Output")
    about = "Write the timeline to this file, such as trace.json or trace.json.gz."
    format_group.add_argument("-o", "--output", default="", metavar="FILE", help=about)
    about = "Print the last 20 ms as rows of characters, one row per track."
    format_group.add_argument("--show", action="store_true", help=about)


def _trace(options: argparse.Namespace) -> int:
    from cotenant.cli.render.trace import show_tracks

    if not options.output and not options.show:
        raise ConfigError("--output", "", "name the file for the timeline, as in: cotenant trace -o trace.json")
    if options.show and options.json and not options.output:
        raise ConfigError("--json", "", "--show prints text; name a file with -o")
    if options.output:
        check_output(options.output)  # before the recording, not after it
    seconds = 0.0 if options.last else seconds_of(options.seconds)
    recording = record_with_bar(load_own(options), seconds, Console(stderr=True))
    if options.output:
        with Console(stderr=True).status("writing"):  # appears on terminals only
            summary = write(recording, options.output)
        if options.json:
            print_json(summary)
        else:
            print_line(
                f"{summary.events} events of {summary.milliseconds} ms in {summary.file}: open it in ui.perfetto.dev"
            )
    if options.show and not options.json:
        show_tracks(output(), recording)
    return 0


def seconds_of(text: str | None) -> float:
    """Return the time to record from the value of --seconds."""
    if text is None:
        return DEFAULT_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _MAX_SECONDS:
        raise ConfigError("--seconds", text, f"write a number above 0 and up to {_MAX_SECONDS:.0f}")
    return seconds


def check_output(output: str) -> None:
    """Raise ConfigError if no file can be written there, as far as that can be known in advance."""
    parent = Path(output).absolute().parent
    if not parent.is_dir():
        raise ConfigError("--output", output, "its directory does not exist; choose another path")
    if Path(output).is_dir():
        raise ConfigError("--output", output, "is a directory; name a file in it")
    if not os.access(parent, os.W_OK):
        raise ConfigError("--output", output, "you may not write there; choose another path")


def record_with_bar(directories: Directories, seconds: float, console: Console) -> Recording:
    """Record for some seconds, with a bar on a terminal."""
    with bar_of_seconds(console, "recording", seconds) as passed:
        reads = reads_for(seconds, passed)
        return record(directories, seconds, print_line, reads)
