"""What ran when on this machine's devices?"""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from cotenant.cli.command import add_command, load, print_json, say
from cotenant.errors import ConfigError


def add_commands(commands: Any) -> None:
    about = "What ran when: a timeline for Perfetto, or a picture in the terminal."
    trace = add_command(commands, "trace", about, _trace, "directories", json=True)
    trace.add_argument("-o", "--output", default="", metavar="FILE", help="write it there: trace.json or trace.json.gz")
    span = trace.add_mutually_exclusive_group()
    span.add_argument("--seconds", default=None, metavar="N", help="the next N seconds (default 5)")
    span.add_argument("--last", action="store_true", help="what is remembered, rather than what comes")
    trace.add_argument("--show", action="store_true", help="print the last 20 ms as lanes of characters")


def _trace(options: argparse.Namespace) -> int:
    from cotenant.apps.show_trace import show_picture
    from cotenant.apps.trace import check_place, record, seconds_of, write

    if not options.output and not options.show:
        raise ConfigError("--output", "", "say where to write the timeline, as in: cotenant trace -o trace.json")
    if options.show and options.json and not options.output:
        raise ConfigError("--json", "", "a picture is for people; name a file with -o")
    if options.output:
        check_place(options.output)  # before the recording, not after it
    seconds = 0.0 if options.last else seconds_of(options.seconds)
    recording = record(load(options)[1], seconds, Console(stderr=True), say)
    if options.output:
        with Console(stderr=True).status("writing"):  # shown on a terminal alone
            written = write(recording, options.output)
        if options.json:
            print_json(written)
        else:
            say(f"{written.events} events of {written.milliseconds} ms in {written.file}: open it in ui.perfetto.dev")
    if options.show and not options.json:
        show_picture(Console(), recording)
    return 0
