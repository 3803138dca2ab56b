"""What can be asked of a machine that is a node of a cluster?"""

from __future__ import annotations

import argparse
from typing import Any

from cotenant.cli.command import add_command, load, say


def add_agent(commands: Any) -> None:
    about = "Take jobs of a cluster; `cotenant node --join` starts this by itself."
    agent = add_command(commands, "agent", about, _agent, "directories", "agent")
    agent.add_argument("--until-eof", action="store_true", help="stop when standard input ends")


def _agent(options: argparse.Namespace) -> int:
    from cotenant.apps.cluster_agent import serve_agent

    config, where = load(options)
    serve_agent(config.agent, where, options.config, say, until_eof=options.until_eof)
    return 0
