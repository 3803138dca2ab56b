"""`cotenant run --detach` and `cotenant logs`: programs in the background, and what they wrote."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cotenant.cli.command import configure, find, group, load_own, print_line
from cotenant.cli.parser import Parser
from cotenant.errors import ConfigError, CotenantError
from cotenant.node.directories import Directories, make_directory
from cotenant.runner.clock import pause
from cotenant.runner.process import start_in_background

_JOIN_TRIES: Final = 1200
_PERIOD_S: Final = 0.1
_SHOWN_LINES: Final = 20
_TAIL_BYTES: Final = 1 << 20


def configure_logs(parser: Parser) -> None:
    configure(parser, _logs, "directories")
    parser.add_argument("name", metavar="NAME", help="The tenant, started with `cotenant run --detach --name NAME`.")
    format_group = group(parser, "Output")
    about = "Wait for further output, until the program ends or this command is interrupted."
    format_group.add_argument("-f", "--follow", action="store_true", help=about)
    about = "Begin with the last N lines (default: all)."
    format_group.add_argument("--lines", type=int, default=None, metavar="N", help=about)


def start_detached(options: argparse.Namespace, name: str) -> int:
    """Start `cotenant run` with the same words in the background; return when its program is a tenant."""
    from cotenant.node.client.connection import list_tenants

    if not name:
        raise ConfigError("--name", "", "a program in the background needs a name, by which `cotenant logs` finds it")
    log = _log_of(load_own(options), name)
    words = [word for word in _before_program(options.command_line) if word not in ("-d", "--detach")]
    process = start_in_background([*words, *options.command_line[len(_before_program(options.command_line)) :]], log)
    log.with_suffix(".pid").write_text(f"{process.pid}\n")
    for _ in range(_JOIN_TRIES):
        if (code := process.poll()) is not None:
            break
        try:
            if any(view.tenant.name == name for view in list_tenants(find(options)[1]).tenants):
                print_line(f"{name} runs in the background; its output: cotenant logs {name}")
                return 0
        except CotenantError:
            pass  # the node is still starting
        pause(_PERIOD_S)
    else:
        print_line(f"{name} is still starting; see: cotenant logs {name}")
        return 0
    for line in _last_lines(log, _SHOWN_LINES):
        print(line, file=sys.stderr)
    return code


def _before_program(words: list[str]) -> list[str]:
    return words[: words.index("--")] if "--" in words else words


def _logs(options: argparse.Namespace) -> int:
    if options.lines is not None and options.lines < 0:
        raise ConfigError("--lines", options.lines, "write a whole number of at least 0")
    log = _log_of(load_own(options), options.name)
    if not log.exists():
        remedy = "no program of this name was started with: cotenant run --detach --name NAME -- COMMAND"
        raise ConfigError("NAME", options.name, remedy)
    for text in _read(log, options.lines, follow=options.follow):
        sys.stdout.write(text)
        sys.stdout.flush()
    return 0


def _read(log: Path, lines: int | None, *, follow: bool) -> Iterator[str]:
    if lines is not None:
        yield from (f"{line}\n" for line in _last_lines(log, lines))
    with log.open(encoding="utf-8", errors="replace") as file:
        if lines is not None:
            file.seek(0, os.SEEK_END)
        while True:
            is_over = not _is_running(log)  # asked before the last read, so that no output is missed
            if text := file.read():
                yield text
            if not follow or is_over:
                return
            pause(_PERIOD_S)


def _last_lines(log: Path, count: int) -> list[str]:
    with log.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return lines[-count:] if count else []


def _is_running(log: Path) -> bool:
    try:
        pid = int(log.with_suffix(".pid").read_text())
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, ValueError, IndexError):
        return False
    return state not in ("Z", "X")


def _log_of(own: Directories, name: str) -> Path:
    from cotenant.node.client.commands import valid_name

    directory = own.state / "logs"
    make_directory(directory, "directories.state")
    return directory / f"{valid_name(name)}.log"
