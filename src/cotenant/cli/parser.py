"""The argument parser of every command: one-sentence errors, suggestions for misspelt words, negative values."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

_NEGATIVE_VALUE: Final = re.compile(r"^-\.?\d\S*$")
"""A word such as -1, -5% or -50ms is the value of a flag; no flag begins with a digit."""


_COLUMNS: Final = 80
"""The width of help that goes to no terminal."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one sentence that names the `--help` to read.

    Flags cannot be abbreviated, because abbreviations would become part of the interface.
    """

    def __init__(self, **settings: Any) -> None:
        """Take the settings of the base class."""
        super().__init__(**{"allow_abbrev": False, "formatter_class": HelpFormatter, **settings})
        self._negative_number_matcher = _NEGATIVE_VALUE

    def error(self, message: str) -> NoReturn:
        """Print the message and the command that shows the help, and exit with code 2."""
        message = message.replace("expected one argument", "needs a value")
        self.exit(2, f"cotenant: {message}; see `{self.prog} --help`\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse unknown flags here, where the command that does not know them can suggest one of its own."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            flags = [word for word in unknown if word.startswith("-")]
            if flags:
                known = [option for option in self._option_string_actions if option.startswith("--")]
                flag = flags[0].partition("=")[0]
                self.error(f"unknown flag {flag}{suggestion(flag, known)}")
            self.error(f"unexpected argument {unknown[0]!r}")
        return options, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:  # noqa: SLF001
            raise argparse.ArgumentError(None, f"unknown command {value!r}{suggestion(value, action.choices)}")
        super()._check_value(action, value)


def _terminal_columns() -> int:
    """Return the width of the terminal, as `shutil.get_terminal_size` does; that module takes longer to import."""
    with contextlib.suppress(KeyError, ValueError):
        if (columns := int(os.environ["COLUMNS"])) > 0:
            return columns
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or _COLUMNS  # type: ignore[union-attr]
    return _COLUMNS


class HelpFormatter(argparse.HelpFormatter):
    """Help with a short usage line, and a column of flags in which most flags fit on the line of their text."""

    def __init__(self, prog: str) -> None:
        """Take the name of the program."""
        super().__init__(prog, max_help_position=30, width=_terminal_columns() - 2)

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any = None) -> None:
        """Add the usage line without the flags, which are listed under their headings.

        argparse passes an empty prefix when it builds the program name of a subcommand.
        """
        if prefix == "":
            super().add_usage(usage, actions, groups, prefix)
            return
        super().add_usage(usage or f"{self._prog} {synopsis(actions)}", actions, groups, prefix)


def synopsis(actions: Iterable[argparse.Action]) -> str:
    """Return the arguments of a command in short, such as `[FLAGS] NAME...`."""
    words = ["[FLAGS]"]
    for action in actions:
        if not action.option_strings:
            name = str(action.metavar or action.dest.upper())
            suffixes = {"?": f"[{name}]", "*": f"[{name}]...", "+": f"{name}...", argparse.PARSER: f"{name} ..."}
            words.append(suffixes.get(str(action.nargs), name))
    return " ".join(words)


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return ", did you mean ...?" with the nearest known word; empty if none is near."""
    import difflib  # only for what is misspelt

    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f", did you mean {matches[0]}?" if matches else ""


def subcommands(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """Return the parsers of the commands of a parser by name, in the order of its help."""
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            return dict(action.choices)
    return {}


def subcommand_summaries(parser: argparse.ArgumentParser) -> Sequence[tuple[str, str]]:
    """Return the name and the one-line summary of each command of a parser."""
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            return [(choice.dest, choice.help or "") for choice in action._choices_actions]  # noqa: SLF001
    return []
