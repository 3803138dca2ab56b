"""The command line: arguments to config, and the app they name."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final

from cotenant import __version__
from cotenant.cli.command import Parser, say
from cotenant.errors import CotenantError

COMMANDS: Final = {
    "node": ("node", "run", "ps", "doctor", "terms", "config"),
    "gate": ("pause", "resume", "evict", "set", "top"),
    "observe": ("events", "explain"),
    "gpu": ("gpu",),
    "trace": ("trace",),
    "profile": ("profile",),
    "advise": ("advise",),
    "serve": ("serve",),
    "serve_profile": ("serve profile",),
    "serve_plan": ("serve plan",),
    "load": ("load",),
    "cluster": ("cluster",),
    "jobs": ("submit", "jobs", "cancel"),
    "softgpu": ("softgpu",),
    "study": ("replay", "place", "simulate", "lab", "demo"),
    "bench": ("bench",),
}
"""Which file adds which commands, in the order of `cotenant --help`."""
TWO_WORDS: Final = ("serve profile", "serve plan")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = _one_command(list(sys.argv[1:] if arguments is None else arguments))
    options = parser_for(words).parse_args(words)
    try:
        code: int = options.command(options)
    except CotenantError as error:
        say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has enough; do not let Python complain about it on the way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code


def _one_command(words: list[str]) -> list[str]:
    """A command of two words as one: `serve` takes files, yet two words behind it are commands of their own.

    A folder of such a name is served as ./profile.
    """
    two = " ".join(words[:2])
    return [two, *words[2:]] if two in TWO_WORDS else words


def parser_for(words: Sequence[str]) -> Parser:
    """What takes these words: the file of a command alone, for those of the others take as long as many a command."""
    parser = Parser(
        prog="cotenant",
        description="Deep-learning workloads share a GPU without hurting each other.",
        epilog="Try it: cotenant demo. See who shares: cotenant ps. Something odd: cotenant doctor.",
    )
    parser.add_argument("--version", action="version", version=f"cotenant {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    named = words[0] if words else ""
    files = [file for file, names in COMMANDS.items() if named in names] or COMMANDS
    for file in files:
        importlib.import_module(f"cotenant.cli.{file}").add_commands(commands)
    return parser
