"""The command line: arguments to config, and the app they name."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cotenant import __version__
from cotenant.cli.advise import add_advise_command
from cotenant.cli.bench import add_bench_command
from cotenant.cli.command import Parser, say
from cotenant.cli.gate import add_gate_commands
from cotenant.cli.gpu import add_gpu_command
from cotenant.cli.load import add_load_command
from cotenant.cli.node import add_node_commands
from cotenant.cli.observe import add_observe_commands
from cotenant.cli.profile import add_profile_commands
from cotenant.cli.serve import add_serve_command
from cotenant.cli.softgpu import add_softgpu_commands
from cotenant.cli.study import add_study_commands
from cotenant.cli.trace import add_trace_command
from cotenant.errors import CotenantError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(words)
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


def _parser() -> Parser:
    parser = Parser(
        prog="cotenant",
        description="Deep-learning workloads share a GPU without hurting each other.",
        epilog="Try it: cotenant demo. See who shares: cotenant ps. Something odd: cotenant doctor.",
    )
    parser.add_argument("--version", action="version", version=f"cotenant {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    add_node_commands(commands)
    add_gate_commands(commands)
    add_observe_commands(commands)
    add_gpu_command(commands)
    add_trace_command(commands)
    add_profile_commands(commands)
    add_advise_command(commands)
    add_serve_command(commands)
    add_load_command(commands)
    add_softgpu_commands(commands)
    add_study_commands(commands)
    add_bench_command(commands)
    return parser
