"""What happened on this machine's node, and why?"""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from cotenant.cli.command import add_command, find, print_json, say
from cotenant.errors import ConfigError
from cotenant.format.quantity import parse_duration


def add_commands(commands: Any) -> None:
    events = add_command(commands, "events", "What happened on this node?", _events, "directories")
    events.add_argument("--follow", action="store_true", help="go on with what happens from now on, until stopped")
    events.add_argument("--since", default="", metavar="DURATION", help="only what is no older, as in 10min")
    events.add_argument("--tenant", default="", metavar="NAME", help="only what is about this tenant")
    events.add_argument("--gpu", default=None, metavar="N", help="only what is about the GPU of this number")
    events.add_argument("--json", action="store_true", help="one JSON object per line")
    about = "Why does a tenant wait, why was it denied, refused, evicted?"
    explain = add_command(commands, "explain", about, _explain, "directories", json=True)
    explain.add_argument("name", metavar="NAME", help="the tenant; one that left or was refused, too")


def _events(options: argparse.Namespace) -> int:
    from cotenant.apps.events import Wanted, happening_json, happening_line, happenings

    gpu = options.gpu
    if gpu is not None and not (gpu.isascii() and gpu.isdigit()):
        raise ConfigError("--gpu", gpu, "write the number of a GPU, as in 0; see: cotenant ps")
    since = parse_duration(options.since, field="--since") if options.since else None
    wanted = Wanted(options.tenant, None if gpu is None else int(gpu), since)
    try:
        for happening in happenings(find(options)[1], wanted, say, follow=options.follow):
            if options.json:
                print_json(happening_json(happening))
            else:
                print(happening_line(happening), flush=options.follow)
    except KeyboardInterrupt:
        if not options.follow:
            raise
    return 0


def _explain(options: argparse.Namespace) -> int:
    from cotenant.apps.explain import explain, explanation_json
    from cotenant.apps.show_explain import show_explanation

    explanation = explain(find(options)[1], options.name, say)
    if options.json:
        print_json(explanation_json(explanation))
    else:
        show_explanation(Console(soft_wrap=True), explanation)
    return 0
