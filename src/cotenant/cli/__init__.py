"""The `cotenant` command: the table of commands, and the function that runs one of them."""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from cotenant import __version__
from cotenant.cli.parser import Parser
from cotenant.errors import CotenantError, SetupError, WorldError

_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_NOT_PERMITTED: Final = (errno.EACCES, errno.EPERM)
_MACHINE_ERRORS: Final = (*_NO_SPACE, *_NOT_PERMITTED, errno.EMFILE, errno.ENFILE, errno.EIO)
"""Errors that the user's machine causes, in whatever command."""
_OBJECTS_PER_COLLECTION: Final = 20_000
"""More than the modules have that a command imports when it begins."""


class CommandEntry(NamedTuple):
    """One command of `cotenant`."""

    name: str
    module: str
    """The module below cotenant.cli whose function `configure_NAME` adds its flags."""
    summary: str


COMMANDS: Final[dict[str, tuple[CommandEntry, ...]]] = {
    "Tenants": (
        CommandEntry("run", "tenant", "Run a program as a tenant of this machine's node."),
        CommandEntry("ps", "tenant", "List the tenants of this machine's node."),
        CommandEntry("logs", "logs", "Show the output of a program under `cotenant run --detach`."),
        CommandEntry("top", "top", "Show device use, launches and waits of the tenants, every second."),
        CommandEntry("pause", "tenant", "Stop tenants from launching GPU work."),
        CommandEntry("resume", "tenant", "Allow paused tenants to launch GPU work again."),
        CommandEntry("evict", "tenant", "End tenants: drain their GPU work, send SIGTERM, and SIGKILL after a grace."),
        CommandEntry("set", "tenant", "Change a running tenant's priority, objective or share, or the gate's rules."),
        CommandEntry("self", "tenant", "Inside a tenant: show the grant that the node issued to it."),
        CommandEntry("events", "events", "List the events of this machine's node."),
        CommandEntry("explain", "events", "Explain why a tenant waits, or why it was denied, refused or evicted."),
    ),
    "Node": (
        CommandEntry("node", "node", "Run the node daemon of this machine, with which tenants register."),
        CommandEntry("web", "web", "Show the node, a cluster and an inference server in a browser."),
        CommandEntry("doctor", "node", "Check whether this machine is ready, and say how to fix what is not."),
        CommandEntry("selftest", "selftest", "Test hook, gate and quotas in front of the installed driver."),
        CommandEntry("config", "node", "Show or check the configuration."),
        CommandEntry("gpu", "gpu", "Show the GPUs of this machine, their use and their processes."),
        CommandEntry("softgpu", "softgpu", "Manage software GPUs: the CUDA driver API without hardware."),
    ),
    "Profiles and traces": (
        CommandEntry("profile", "profile", "Record, show and compare kernel times of programs."),
        CommandEntry("advise", "profile", "Measure a program's GPU work and estimate what a co-tenant could use."),
        CommandEntry("play", "model", "Play the kernel stream of an imported model on a software GPU."),
        CommandEntry("trace", "trace", "Record a timeline of launches and kernels for Perfetto or the terminal."),
    ),
    "Inference server": (
        CommandEntry("serve", "serve", "Serve models over HTTP and gRPC, profile them, or plan their schedule."),
        CommandEntry("load", "load", "Send an open-loop request load to an inference server."),
    ),
    "Kubernetes": (
        CommandEntry("kubernetes", "kubernetes", "Run the parts of cotenant in a Kubernetes cluster, and check them."),
        CommandEntry("jobs", "kubernetes", "List the Jobs of a Kubernetes cluster that use its GPUs."),
        CommandEntry("cluster", "cluster", "Compute a placement round of a cluster, without carrying it out."),
    ),
    "Simulation": (
        CommandEntry("simulate", "simulate", "Run a scenario under a simulated clock."),
        CommandEntry("whatif", "whatif", "Predict what sharing a GPU does to models, without a GPU."),
        CommandEntry("replay", "simulate", "Replay a journal and compare every decision with the recorded one."),
        CommandEntry("demo", "demo.command", "Demonstrate GPU sharing on this machine; no GPU is needed."),
    ),
    "Help": (
        CommandEntry("help", "help", "Show the help of a command."),
        CommandEntry("version", "help", "Print the version."),
        CommandEntry("completion", "help", "Print a completion script for bash, zsh or fish."),
        CommandEntry("man", "help", "Write the manual pages of all commands."),
    ),
}
"""Every command by the heading that `cotenant --help` shows it under."""
ENTRIES: Final = {entry.name: entry for entries in COMMANDS.values() for entry in entries}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return run_command(parser_for(words), words)


def run_command(parser: Parser, words: Sequence[str]) -> int:
    """Parse the words, run the command they name, and return the exit code."""
    options = parser.parse_args(words)
    options.command_line = list(words)
    gc.freeze()  # collections need not look at the modules, and children share their memory
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    gc.enable()
    try:
        with _interruptible():
            code: int = options.command(options)
            sys.stdout.flush()  # a full disk is reported here, and not by Python while it exits
    except CotenantError as error:
        _report(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output closed the pipe. Python would report that again while it exits.
        _discard_output()
        return 141
    except OSError as error:
        if error.errno not in _MACHINE_ERRORS:
            raise
        _discard_output()
        where = "" if error.filename is None else f": {os.fsdecode(error.filename)}"
        remedy = "free some space, or make it writable" if error.errno in _NO_SPACE else "check who may use it"
        _report(f"{error.strerror}{where}; {remedy}")
        return SetupError.exit_code if error.errno in _NOT_PERMITTED else WorldError.exit_code
    return code


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C raise `KeyboardInterrupt` inside the block, and end the process before and after it."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:  # called by a program with its own rule
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _discard_output() -> None:
    """Let Python discard what standard output cannot take; it would report that again while it exits."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(text: str) -> None:
    """Print a line on standard error, which may be on a full disk too."""
    with contextlib.suppress(OSError):
        print(f"cotenant: {text}", file=sys.stderr, flush=True)


def parser_for(words: Sequence[str]) -> Parser:
    """Return the parser for a command line; only the command that it names is added, and its module imported.

    Importing the modules of all commands takes longer than many commands run, and so do all their parsers.
    """
    named = [words[0]] if words and words[0] in ENTRIES else []
    return _parser(named or list(ENTRIES), named)


def full_parser() -> Parser:
    """Return the parser with the flags of every command, for completion scripts and manual pages."""
    return _parser(list(ENTRIES), list(ENTRIES))


class RootParser(Parser):
    """The parser of `cotenant` itself, whose help lists the commands under headings."""

    def format_help(self) -> str:
        """Return the help."""
        width = max(map(len, ENTRIES)) + 2
        lines = [f"usage: {self.prog} [--help] [--version] COMMAND ...", "", self.description or ""]
        for heading, entries in COMMANDS.items():
            lines += ["", f"{heading}:", *(f"  {entry.name:{width}}{entry.summary}" for entry in entries)]
        lines += ["", "Flags:", f"  {'--help':{width}}Show this help.", f"  {'--version':{width}}Print the version."]
        return "\n".join([*lines, "", self.epilog or "", ""])


def _import_msgspec() -> None:
    """Import msgspec without typing_extensions, which takes longer to import than msgspec itself.

    msgspec uses that package only where it is installed, for functions that `typing` has as well.
    """
    if "msgspec" in sys.modules or "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # the import fails
    try:
        importlib.import_module("msgspec")
    finally:
        del sys.modules["typing_extensions"]


def _parser(known: Sequence[str], named: Sequence[str]) -> Parser:
    """Return the parser that knows these commands by name and summary, and those in `named` with their flags."""
    parser = RootParser(
        prog="cotenant",
        description="cotenant lets deep-learning workloads share a GPU.",
        epilog="Start with `cotenant demo`. `cotenant help COMMAND` shows the flags of a command.",
    )
    parser.add_argument("--version", action="version", version=f"cotenant {__version__}", help="Print the version.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser, prog="cotenant")
    for entry in map(ENTRIES.__getitem__, known):
        command = commands.add_parser(entry.name, help=entry.summary, description=entry.summary)
        if entry.name in named:
            _import_msgspec()
            configure: Callable[[Parser], None] = getattr(
                importlib.import_module(f"cotenant.cli.{entry.module}"), f"configure_{entry.name}"
            )
            configure(command)
    return parser
