"""`cotenant serve plan`: what does a server intend, or what would it?"""

from __future__ import annotations

import argparse
from typing import Any

from cotenant.cli.command import add_command, find, load, print_json, say
from cotenant.cli.serve_flags import MODELS, add_runtime_flags
from cotenant.errors import ConfigError


def add_commands(commands: Any) -> None:
    """`cotenant serve plan MODELS`, or `--url` of a running server."""
    about = "Show and explain the plan of a server: batch, cores and runs of each model."
    plan = add_command(commands, "serve plan", about, _plan, json=True)
    plan.add_argument("models", nargs="*", metavar="MODELS", help=f"{MODELS}; all of which have been profiled")
    plan.add_argument("--url", default="", help="of a running server, as http://127.0.0.1:8000, instead of MODELS")
    rate = "rows a second that are asked for (default: together most of the device, in equal parts); may be repeated"
    plan.add_argument("--rate", action="append", default=[], metavar="NAME=RPS", help=rate)
    change = "also show the plan if: MODEL.slo=50ms, MODEL.rate=200, units=4, without=MODEL; may be repeated"
    plan.add_argument("--what-if", action="append", default=[], metavar="CHANGE", help=change)
    add_runtime_flags(plan)


def _plan(options: argparse.Namespace) -> int:
    from rich.console import Console

    if options.url:
        if options.models or options.rate or options.what_if:
            raise ConfigError("--url", options.url, "asks a running server: leave MODELS, --rate and --what-if out")
        from cotenant.apps.serve_plan import running_plan
        from cotenant.apps.show_serve_plan import show_running

        told = running_plan(options.url)
        if options.json:
            print_json(told)
        else:
            show_running(Console(), told, options.url)
        return 0
    if not options.models:
        raise ConfigError("MODELS", "", "name models that were profiled, or a running server by --url")
    for one in options.models:
        if "://" in one:
            raise ConfigError("MODELS", one, f"a running server is named by --url {one}")
    from cotenant.apps.needs import need_packages

    need_packages("serve", "pip install 'cotenant[serve]'", "google.protobuf", "onnxruntime")
    from cotenant.apps.serve_plan import PlanArguments, plan_models
    from cotenant.apps.show_serve_plan import planned_json, show_planned

    given = {name: getattr(options, name) for name in PlanArguments.__struct_fields__}
    lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    planned = plan_models(PlanArguments(**(given | lists)), find(options)[1], load(options)[1], say)
    if options.json:
        print_json(planned_json(planned))
    else:
        show_planned(Console(), planned, ", ".join(options.what_if))
    return 0 if planned.now.plan.models else 1
