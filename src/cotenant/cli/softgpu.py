"""What can be asked of software GPUs?"""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from rich.console import Console

from cotenant.cli.command import add_command, load, print_json, say


def add_softgpu_commands(commands: Any) -> None:
    about = "Software GPUs: real time, real libcuda face, no hardware."
    parser: argparse.ArgumentParser = commands.add_parser("softgpu", help=about, description=about)
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    create = add_command(
        verbs, "create", "Start software GPUs on this machine.", _softgpu_create, "directories", json=True
    )
    create.add_argument("--gpu", default="v100", metavar="MODEL", help="t4, v100, v100-32, a100, a100-80 or h100")
    create.add_argument("--count", default="1", metavar="N", help="how many (default 1)")
    create.add_argument("--memory", default=None, metavar="SIZE", help="device memory instead of the model's own")
    create.add_argument("--slice", default=None, metavar="DURATION", help="time slice between processes (default 2ms)")
    create.add_argument(
        "--compute-mode", default="default", metavar="MODE", help="default, exclusive-process or prohibited"
    )
    add_command(verbs, "list", "Which software GPUs are there?", _softgpu_list, "directories", json=True)
    inspect = add_command(
        verbs, "inspect", "The books of one software GPU.", _softgpu_inspect, "directories", json=True
    )
    inspect.add_argument("number", nargs="?", default="0", metavar="N", help="its number (default 0)")
    add_command(
        verbs, "destroy", "End all software GPUs; their clients see a lost device.", _softgpu_destroy, "directories"
    )
    add_command(verbs, "env", "What to export so that programs find them.", _softgpu_env, "directories", json=True)


def _softgpu_create(options: argparse.Namespace) -> int:
    from cotenant.apps import softgpu
    from cotenant.apps.show import show_softgpus

    made = softgpu.create(
        load(options)[1], options.gpu, options.count, options.memory, options.slice, options.compute_mode
    )
    if options.json:
        print_json({"gpus": made})
    else:
        show_softgpus(Console(), made)
    return 0


def _softgpu_list(options: argparse.Namespace) -> int:
    from cotenant.apps import softgpu
    from cotenant.apps.show import show_softgpus

    found = softgpu.find(load(options)[1])
    if options.json:
        print_json({"gpus": found})
    else:
        show_softgpus(Console(), found)
    return 0


def _softgpu_inspect(options: argparse.Namespace) -> int:
    from cotenant.apps import softgpu
    from cotenant.apps.show import show_books

    books = softgpu.books(load(options)[1], options.number)
    if options.json:
        print_json(books)
    else:
        show_books(Console(), books)
    return 0


def _softgpu_destroy(options: argparse.Namespace) -> int:
    from cotenant.apps import softgpu
    from cotenant.apps.show import counted

    say(f"{counted(softgpu.destroy(load(options)[1]), 'software GPU')} ended")
    return 0


def _softgpu_env(options: argparse.Namespace) -> int:
    from cotenant.apps import softgpu

    variables = softgpu.environment(load(options)[1])
    if options.json:
        print_json(variables)
    else:
        print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items()))
    return 0
