"""Commands about the command line itself: help, version, completion and man."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from cotenant import __version__
from cotenant.cli.parser import Parser, subcommands, suggestion
from cotenant.errors import ConfigError

SHELLS: Final = ("bash", "zsh", "fish")
_INSTALL: Final = """Load it in the running shell, or install it for new ones:
  bash: source <(cotenant completion bash)
        cotenant completion bash > ~/.local/share/bash-completion/completions/cotenant
  zsh:  cotenant completion zsh > "${fpath[1]}/_cotenant"
  fish: cotenant completion fish > ~/.config/fish/completions/cotenant.fish"""


def configure_help(parser: Parser) -> None:
    parser.set_defaults(command=_help)
    about = "A command and, if it has any, one of its own commands, such as `serve run`."
    parser.add_argument("words", nargs="*", metavar="COMMAND", help=about)


def configure_version(parser: Parser) -> None:
    parser.set_defaults(command=_version)


def configure_completion(parser: Parser) -> None:
    parser.set_defaults(command=_completion)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _INSTALL
    parser.add_argument("shell", choices=SHELLS, metavar="|".join(SHELLS), help="The shell to complete for.")


def configure_man(parser: Parser) -> None:
    parser.set_defaults(command=_man)
    about = "Directory for the pages (default: man1 in the current directory)."
    parser.add_argument("-o", "--output", default="man1", metavar="DIR", help=about)


def _help(options: argparse.Namespace) -> int:
    from cotenant.cli import parser_for

    parser: argparse.ArgumentParser = parser_for(options.words)
    for word in options.words:
        commands = subcommands(parser)
        if word not in commands:
            remedy = f"is not a command of {parser.prog}{suggestion(word, commands)}; see `{parser.prog} --help`"
            raise ConfigError("COMMAND", word, remedy)
        parser = commands[word]
    parser.print_help()
    return 0


def _version(options: argparse.Namespace) -> int:
    del options
    print(f"cotenant {__version__}")
    return 0


def _completion(options: argparse.Namespace) -> int:
    import shtab

    from cotenant.cli import full_parser

    sys.stdout.write(shtab.complete(full_parser(), options.shell))
    return 0


def _man(options: argparse.Namespace) -> int:
    from cotenant.cli import full_parser
    from cotenant.cli.render.man import manual_pages
    from cotenant.runner.atomic_file import replace_file

    folder = Path(options.output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, page in manual_pages(full_parser(), __version__).items():
            replace_file(folder / name, page.encode())
    except OSError as error:
        remedy = f"cannot be written: {error.strerror}; choose another directory"
        raise ConfigError("--output", options.output, remedy) from None
    return 0
