"""Manual pages from the argument parsers: one page in troff's man macros for each command."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from cotenant.cli.parser import Parser, subcommand_summaries, subcommands, synopsis

_SECTION = 1


def manual_pages(root: Parser, version: str) -> dict[str, str]:
    """Return the text of each manual page by file name, such as cotenant-run.1.

    A page has no date: the same version gives the same text.
    """
    pages = {}
    for parser in _walk(root):
        name = parser.prog.replace(" ", "-")
        pages[f"{name}.{_SECTION}"] = _page(parser, name, version, root)
    return pages


def _walk(parser: argparse.ArgumentParser) -> Iterable[argparse.ArgumentParser]:
    yield parser
    for command in subcommands(parser).values():
        yield from _walk(command)


def _page(parser: argparse.ArgumentParser, name: str, version: str, root: Parser) -> str:
    about = (parser.description or "").rstrip(".")
    lines = [
        f'.TH {_quoted(name.upper())} {_SECTION} "" "cotenant {version}" "User Commands"',
        ".SH NAME",
        f"{_text(name)} \\- {_text(about[:1].lower() + about[1:])}",
        ".SH SYNOPSIS",
        f".B {_text(parser.prog)}",
        _text(synopsis(parser._actions)),  # noqa: SLF001
        ".SH DESCRIPTION",
        _text(parser.description or ""),
    ]
    for group in parser._action_groups:  # noqa: SLF001  # argparse has no public list of its groups
        actions = [action for action in group._group_actions if _is_shown(action)]  # noqa: SLF001
        if actions:
            lines.append(f".SH {_quoted((group.title or '').upper())}")
            lines += [line for action in actions for line in _entry(action)]
    summaries = subcommand_summaries(parser)
    if summaries:
        lines.append('.SH "COMMANDS"')
        for command, summary in summaries:
            lines += [".TP", f".BR {_text(name)}\\-{_text(command)} (1)", _text(summary)]
    if parser.epilog:
        lines += [".SH NOTES", ".nf", *(_text(line) for line in parser.epilog.splitlines()), ".fi"]
    parent = name.rpartition("-")[0] if parser is not root else ""
    if parent:
        lines += ['.SH "SEE ALSO"', f".BR {_text(parent)} (1)"]
    return "\n".join(lines) + "\n"


def _is_shown(action: argparse.Action) -> bool:
    return action.help is not argparse.SUPPRESS and not isinstance(action, argparse._SubParsersAction)  # noqa: SLF001


def _entry(action: argparse.Action) -> list[str]:
    value = "" if action.nargs == 0 else f" \\fI{_text(_metavar(action))}\\fR"
    flags = ", ".join(f"\\fB{_text(option)}\\fR{value}" for option in action.option_strings)
    about = (action.help or "").replace("%%", "%")
    return [".TP", flags or f"\\fI{_text(_metavar(action))}\\fR", _text(about)]


def _metavar(action: argparse.Action) -> str:
    return str(action.metavar or action.dest.upper())


def _quoted(text: str) -> str:
    return f'"{_text(text)}"'


def _text(text: str) -> str:
    """Escape backslashes, hyphens, and a dot or apostrophe at the start of a line, which troff would interpret."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
