"""What could this program share?"""

from __future__ import annotations

import argparse
import os
from typing import Any

import msgspec
from rich.console import Console

from cotenant.cli.command import add_command, add_flags, find, load, print_json, say
from cotenant.errors import ConfigError


def add_commands(commands: Any) -> None:
    """`cotenant advise`."""
    about = "Watch a program's GPU work, change nothing, and say what could be shared."
    advise = add_command(commands, "advise", about, _advise, "directories", json=True)
    # Not what a tenant asks of a node, for it is nobody's tenant; nor how it is measured, for every kernel is timed.
    add_flags(advise, "run", ("gpu", "hook", "task", "unknown"))
    advise.add_argument("--tenant", default="", metavar="NAME", help="look at this tenant, which runs already, instead")
    advise.add_argument("program", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the program and its arguments")


def _advise(options: argparse.Namespace) -> int:
    from cotenant.apps import advise
    from cotenant.apps.hook import keep
    from cotenant.apps.profile import store_of
    from cotenant.apps.run import spec_of
    from cotenant.apps.show_advice import show_advice
    from cotenant.apps.softgpu import environment_of, home
    from cotenant.live.gpu import soft_directory

    command = options.program[1:] if options.program[:1] == ["--"] else options.program
    if bool(command) == bool(options.tenant):
        raise ConfigError("COMMAND", " ".join(command), "name a program, or with --tenant one that runs; not both")
    config, places = load(options)
    environ = {**os.environ, **environment_of(config.run.gpu, places)}
    soft = soft_directory(environ, home(places))
    if options.tenant:
        hooks = places.runtime / "hook"
        profiles, memory = advise.observe_tenant(find(options)[1], hooks, options.tenant, soft, say)
        code = 0
    else:
        task = spec_of(config.run, command).task
        run = msgspec.structs.replace(config.run, measure="always", task=task)
        code, profiles, memory = advise.observe(run, command, environ, places, soft, say)
        keep(profiles, store_of(places, say), say)
    advices = [advise.advice_of(profile) for profile in profiles]
    if options.json:
        print_json(advise.advice_json(advices, memory))
    else:
        show_advice(Console(), advices, memory)
    return code
