"""What do this machine's GPUs show?"""

from __future__ import annotations

import argparse
import os
from typing import Any

from rich.console import Console
from rich.live import Live

from cotenant.cli.command import add_command, find, load, print_json


def add_commands(commands: Any) -> None:
    about = "What do this machine's GPUs show, real or software ones?"
    gpu = add_command(commands, "gpu", about, _gpu, "directories", json=True)
    gpu.add_argument("--watch", action="store_true", help="look again every second, until stopped")


def _gpu(options: argparse.Namespace) -> int:
    from cotenant.apps.gpu import gpus_json, gpus_table, look

    looks = look(load(options)[1], find(options)[1].socket, os.environ, again=options.watch)
    console = Console()
    if options.json:
        for shown in looks:
            print_json(gpus_json(shown))
    elif not options.watch:
        for shown in looks:
            console.print(gpus_table(shown, console.width))
    else:
        with Live(console=console, auto_refresh=False) as live:
            for shown in looks:
                live.update(gpus_table(shown, console.width), refresh=True)
    return 0
