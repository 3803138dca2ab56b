"""Functions that all commands use: flags of config sections, the config in force, and output."""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import sys
from collections.abc import Callable, Collection
from typing import IO, TYPE_CHECKING, Any, Final, cast

import msgspec

from cotenant.cli.flags import SECTION_TITLES, FieldName, flags_of, overlay
from cotenant.cli.parser import Parser
from cotenant.errors import ConfigError, SetupError
from cotenant.node.config.file import Config, validate
from cotenant.node.directories import (
    Directories,
    client_directories,
    config_file,
    load_config,
    own_directories,
    resolve_directories,
)

if TYPE_CHECKING:
    from rich.console import Console

OUTPUT: Final = "Output"
"""The heading of the flags that choose how results are printed."""
RESTRICTED: Final = "only your own tenants are shown, because you do not operate this node"
"""The line for an ordinary user."""
_PIPE_WIDTH: Final = 100_000
"""The width of output that does not go to a terminal: wider than any line, so that nothing is cut or wrapped."""


def print_line(text: str) -> None:
    """Print a line for the user on standard error."""
    print(f"cotenant: {text}", file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Print a value as one line of JSON on standard output."""
    print(msgspec.json.encode(value, enc_hook=str).decode(), flush=True)


def output() -> Console:
    """Return the console for results: as wide as the terminal; unlimited and without padding elsewhere."""
    from rich.console import Console  # slow to import, and many commands show no table

    if sys.stdout.isatty():
        return Console()
    return Console(file=cast("IO[str]", UnpaddedStream(sys.stdout)), width=_PIPE_WIDTH, force_terminal=False)


class UnpaddedStream(io.TextIOBase):
    """A text file without spaces at the ends of lines: a table pads its cells to the width of their column."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._last_line = ""

    def write(self, text: str) -> int:
        *lines, self._last_line = (self._last_line + text).split("\n")
        self._file.write("".join(f"{line.rstrip(' ')}\n" for line in lines))
        return len(text)

    def flush(self) -> None:
        self._file.write(self._last_line)
        self._last_line = ""
        self._file.flush()


def add_command(
    commands: Any, name: str, about: str, run: Callable[[argparse.Namespace], int], *sections: str, json: bool = False
) -> Parser:
    """Add a command to those of a parser, and return its own parser."""
    parser: Parser = commands.add_parser(name, help=about, description=about)
    configure(parser, run, *sections, json=json)
    return parser


def add_verbs(parser: Parser) -> Any:
    """Return the object to which the subcommands of a command are added."""
    return parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)


def configure(parser: Parser, run: Callable[[argparse.Namespace], int], *sections: str, json: bool = False) -> None:
    """Give a command its function, the flags of sections of the config, and --json."""
    parser.set_defaults(command=run)
    for index, section in enumerate(sections):
        add_flags(parser, section, others=sections[:index])
    if sections:
        files = group(parser, SECTION_TITLES["directories"])
        files.add_argument(
            "--config", default="", metavar="FILE", help="Config file to read instead of the default one."
        )
    if json:
        group(parser, OUTPUT).add_argument("--json", action="store_true", help="Print the result as JSON on one line.")


def group(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """Return the group of flags under a heading of the help; it is added if the parser has none yet."""
    for existing in parser._action_groups:  # noqa: SLF001  # argparse has no public list of its groups
        if existing.title == title:
            return existing
    return parser.add_argument_group(title)


def add_flags(
    parser: argparse.ArgumentParser,
    section: str,
    names: Collection[str] = (),
    *,
    defaults: bool = True,
    others: Collection[str] = (),
) -> None:
    """Add the fields of a section of the config as flags: all of them, or those named.

    A flag that one of the sections `others` has too is prefixed with the name of its section.
    """
    taken = {flag.option for other in others for flag in flags_of(other)}
    for flag in flags_of(section):
        if names and flag.field[1] not in names:
            continue
        about = f"{flag.about}{flag.default if defaults else ''}.".replace("%", "%%")
        option = flag.option if flag.option not in taken else f"--{section}-{flag.option[2:]}"
        flags = group(parser, flag.heading)
        flags.add_argument(option, dest=".".join(flag.field), default=None, metavar=flag.metavar, help=about)


def add_program(parser: argparse.ArgumentParser) -> None:
    """Add the program to run, which follows all flags."""
    about = "The program and its arguments, after `--`."
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="-- COMMAND", help=about)


def program_of(options: argparse.Namespace, example: str, *, required: bool = True) -> list[str]:
    """Return the program and its arguments, without the `--` in front of them."""
    words: list[str] = options.program
    command = words[1:] if words[:1] == ["--"] else words
    if required and not command:
        raise ConfigError("COMMAND", "", f"name the program to run, as in: {example}")
    return command


def given_flags(options: argparse.Namespace) -> dict[FieldName, Any]:
    """Return the fields of the config that were given as flags."""
    fields: dict[FieldName, Any] = {}
    for name, value in vars(options).items():
        section, dot, field = name.partition(".")
        if dot and value is not None:
            fields[section, field] = value
    return fields


def load(options: argparse.Namespace) -> tuple[Config, Directories]:
    """Return the config in force, flags over file, and the caller's own directories."""
    path, named = config_file(os.environ, os.geteuid(), options.config)
    config = overlay(load_config(path, required=named), given_flags(options), getattr(options, "devices", ()))
    validate(config)
    return config, resolve_directories(config.directories, os.environ, os.geteuid())


def load_own(options: argparse.Namespace) -> Directories:
    """Return the directories for the caller's own files, such as profiles, whatever node it uses."""
    return own_directories(load(options)[1], os.environ, os.geteuid())


def find(options: argparse.Namespace) -> tuple[Config, Directories]:
    """Return the config in force and the directories of the node to connect to, which may be the machine's."""
    config, own = load(options)
    return config, client_directories(own, os.environ, config.directories)


def whole_number(flag: str, text: str) -> int:
    """Return the value of a flag as a whole number of at least 0."""
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise ConfigError(flag, text, "write a whole number of at least 0")
    return int(text)


def refresh(show: Callable[[], int]) -> int:
    """Show something every second, in place on a terminal, until Ctrl-C."""
    from cotenant.runner.clock import pause

    try:
        while True:
            if sys.stdout.isatty():
                print("\x1b[H\x1b[2J", end="")
            show()
            sys.stdout.flush()
            pause(1.0)
    except KeyboardInterrupt:
        return 0


def need_packages(command: str, remedy: str, *packages: str) -> None:
    """Raise WorldError if an optional package that a command needs is not installed."""
    for name in packages:
        if importlib.util.find_spec(name) is None:
            raise SetupError(f"{command} needs the package {name}, which is not installed: {remedy}")
