"""What can be asked of software GPUs?"""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import Any

from rich.console import Console

from cotenant.cli.command import add_command, load, print_json, say

_HARMS = "whether an MPS client that dies with work in flight harms its co-clients (default on)"


def add_commands(commands: Any) -> None:
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
    create.add_argument(
        "--context-memory", default=None, metavar="SIZE", help="device memory that each context takes (default none)"
    )
    create.add_argument(
        "--module-memory", default="off", metavar="on|off", help="whether loaded code takes device memory (default off)"
    )
    create.add_argument("--mps-death-harms", default="on", metavar="on|off", help=_HARMS)
    add_command(verbs, "list", "Which software GPUs are there?", _softgpu_list, "directories", json=True)
    inspect = add_command(
        verbs, "inspect", "The books of one software GPU.", _softgpu_inspect, "directories", json=True
    )
    inspect.add_argument("number", nargs="?", default="0", metavar="N", help="its number (default 0)")
    add_command(
        verbs, "destroy", "End all software GPUs; their clients see a lost device.", _softgpu_destroy, "directories"
    )
    _add_fault_commands(verbs)
    models = add_command(
        verbs, "models", "Write models that are only played, for a server.", _softgpu_models, json=True
    )
    models.add_argument("folder", metavar="DIR", help="where to; for `cotenant serve DIR --runtime replay`")
    models.add_argument("names", nargs="*", metavar="NAME", help="which (default all)")
    about = "also those of which kernels were measured there (default none; empty: $COTENANT_DATA)"
    models.add_argument("--data", default=None, metavar="DIR", help=about)
    models.add_argument("--slower", type=float, default=1.0, metavar="F", help="so many times as slow (default 1)")
    add_command(verbs, "env", "What to export so that programs find them.", _softgpu_env, "directories", json=True)


def _add_fault_commands(verbs: Any) -> None:
    fault = add_command(verbs, "fault", "Make something go wrong.", _softgpu_fault, "directories", json=True)
    fault.add_argument("kind", nargs="?", default="", metavar="KIND", help="what goes wrong; --list names the kinds")
    fault.add_argument("--list", action="store_true", help="the kinds, and who sees what")
    fault.add_argument("--gpu", default="0", metavar="N", help="which software GPU (default 0)")
    fault.add_argument("--client", default=None, metavar="PID", help="whom it strikes (default all)")
    fault.add_argument("--at-launch", default=None, metavar="N", help="it strikes at the Nth launch from now")
    fault.add_argument("--for", dest="duration", default=None, metavar="DURATION", help="how long (hang, slow-clock)")
    fault.add_argument("--factor", default=None, metavar="F", help="speed of a slow clock, 0.1 to 1")
    reset = add_command(verbs, "reset", "Bring a lost software GPU back.", _softgpu_reset, "directories")
    reset.add_argument("number", nargs="?", default="0", metavar="N", help="its number (default 0)")
    setting = add_command(verbs, "set", "Change a running software GPU.", _softgpu_set, "directories")
    setting.add_argument("--gpu", default="0", metavar="N", help="which one (default 0)")
    setting.add_argument("--mps-death-harms", required=True, metavar="on|off", help=_HARMS)


def _softgpu_models(options: argparse.Namespace) -> int:
    from cotenant.apps.softgpu_models import write_models

    written = write_models(Path(options.folder), options.names, options.data, options.slower, os.environ)
    if options.json:
        print_json({"models": [str(path) for path in written]})
    else:
        say(f"{len(written)} models; serve them with: cotenant serve {options.folder} --runtime replay")
    return 0


def _softgpu_create(options: argparse.Namespace) -> int:
    from cotenant.apps import softgpu, softgpu_fault
    from cotenant.apps.show import show_softgpus

    wish = softgpu.Wish(
        options.gpu,
        options.count,
        options.memory,
        options.slice,
        options.context_memory,
        softgpu_fault.on_or_off(options.module_memory, field="--module-memory"),
        options.compute_mode,
        softgpu_fault.on_or_off(options.mps_death_harms),
    )
    made = softgpu.create(load(options)[1], wish)
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
    from cotenant.format.quantity import counted

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


def _softgpu_fault(options: argparse.Namespace) -> int:
    from cotenant.apps import softgpu_fault
    from cotenant.apps.show import show_faults

    if options.list:
        if options.json:
            print_json({"kinds": softgpu_fault.kinds()})
        else:
            show_faults(Console(), softgpu_fault.kinds())
        return 0
    wish = softgpu_fault.Wish(
        options.kind, options.gpu, options.client, options.at_launch, options.duration, options.factor
    )
    done = softgpu_fault.inject(load(options)[1], wish)
    if options.json:
        print_json(done)
    else:
        say(", ".join(f"{name} {value}" for name, value in done.items()))
    return 0


def _softgpu_reset(options: argparse.Namespace) -> int:
    from cotenant.apps import softgpu_fault

    softgpu_fault.reset(load(options)[1], options.number)
    say(f"software GPU {options.number} is reset")
    return 0


def _softgpu_set(options: argparse.Namespace) -> int:
    from cotenant.apps import softgpu_fault

    softgpu_fault.set_mps_deaths(load(options)[1], options.gpu, options.mps_death_harms)
    return 0
