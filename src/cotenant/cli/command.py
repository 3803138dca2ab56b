"""What every command of the command line is made of: arguments, config, the two ways to answer."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Collection
from typing import Any, NoReturn

import msgspec

from cotenant.format.config import Config, validate
from cotenant.format.flags import FieldName, flags_of, overlay
from cotenant.live.directory import Places, config_file, door_to_use, load_config, places


class Parser(argparse.ArgumentParser):
    """Bad arguments get one sentence, not a page of usage; a flag is written out, or abbreviations become interface."""

    def __init__(self, **given: Any) -> None:
        """As the base class, for the parsers of commands too."""
        super().__init__(**{"allow_abbrev": False, **given})

    def error(self, message: str) -> NoReturn:
        """One sentence and where to read more."""
        self.exit(2, f"cotenant: {message}; see `{self.prog} --help`\n")


def say(text: str) -> None:
    print(f"cotenant: {text}", file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    print(msgspec.json.encode(value, enc_hook=str).decode(), flush=True)


def add_command(
    commands: Any, name: str, about: str, run: Callable[[argparse.Namespace], int], *sections: str, json: bool = False
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=about, description=about)
    parser.set_defaults(command=run)
    if sections:
        parser.add_argument("--config", default="", metavar="FILE", help="config file instead of the usual one")
    for place, section in enumerate(sections):
        add_flags(parser, section, others=sections[:place])
    if json:
        parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    return parser


def add_flags(
    parser: argparse.ArgumentParser,
    section: str,
    names: Collection[str] = (),
    *,
    defaults: bool = True,
    others: Collection[str] = (),
) -> None:
    """The fields of a section of the config as flags; all of them, or those named.

    A flag that one of the `others` has too is called by its section as well.
    """
    taken = {flag.option for other in others for flag in flags_of(other)}
    for flag in flags_of(section):
        if names and flag.field[1] not in names:
            continue
        about = (flag.about + (flag.default if defaults else "")).replace("%", "%%")
        option = flag.option if flag.option not in taken else f"--{section}-{flag.option[2:]}"
        parser.add_argument(option, dest=".".join(flag.field), default=None, metavar=flag.metavar, help=about)


def given_flags(options: argparse.Namespace) -> dict[FieldName, Any]:
    given: dict[FieldName, Any] = {}
    for name, value in vars(options).items():
        section, dot, field = name.partition(".")
        if dot and value is not None:
            given[section, field] = value
    return given


def load(options: argparse.Namespace) -> tuple[Config, Places]:
    path, named = config_file(os.environ, os.geteuid(), options.config)
    config = overlay(load_config(path, required=named), given_flags(options), getattr(options, "devices", ()))
    validate(config)
    return config, places(config.directories, os.environ, os.geteuid())


def find(options: argparse.Namespace) -> tuple[Config, Places]:
    """As `_load`, for those who look for a node rather than be one."""
    config, own = load(options)
    return config, door_to_use(own, os.environ, config.directories)
