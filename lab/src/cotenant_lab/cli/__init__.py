"""The command line of `cotenant-lab`: `bench NAME` and `study NAME`."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Sequence
from typing import Final

from cotenant.cli import run_command
from cotenant.cli.parser import Parser
from cotenant_lab import __version__

COMMANDS: Final = ("bench", "study")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # A bench that is terminated ends the processes that it has started, as with Ctrl-C.
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run_command(parser_for(words), words)
    finally:
        signal.signal(signal.SIGTERM, previous)


def parser_for(words: Sequence[str]) -> Parser:
    """Return the parser; it imports the module of the named command only."""
    parser = Parser(prog="cotenant-lab", description="Benchmarks and paper studies of cotenant.")
    parser.add_argument("--version", action="version", version=f"cotenant-lab {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    named = words[0] if words else ""
    for command in [named] if named in COMMANDS else COMMANDS:
        importlib.import_module(f"cotenant_lab.cli.{command}").add_commands(commands)
    return parser
