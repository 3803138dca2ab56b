"""`cotenant cluster plan`: one placement round of a cluster, computed and not carried out."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from cotenant.cli.command import OUTPUT, add_command, add_verbs, group, output, print_json, print_line
from cotenant.cli.kubernetes import NAMESPACE, add_api, api_client
from cotenant.cli.parser import Parser
from cotenant.errors import ConfigError

if TYPE_CHECKING:  # imported when a round is planned: it takes longer than the help of the command
    from cotenant.cluster.plan import PlanReport


def configure_cluster(parser: Parser) -> None:
    about = "Compute one placement round without carrying it out: which job shares which GPU, and why others wait."
    plan = add_command(add_verbs(parser), "plan", about, _plan, json=True)
    about = (
        "JSON file with the state of a cluster at one instant (default: the present state of the Kubernetes cluster)."
    )
    plan.add_argument("snapshot", nargs="?", default="", metavar="SNAPSHOT", help=about)
    about = "Placement policy to use instead of the one in the snapshot."
    plan.add_argument("--place", default="", metavar="POLICY", help=about)
    about = "Write the state of the Kubernetes cluster to this file, as a SNAPSHOT."
    group(plan, OUTPUT).add_argument("--save", default="", metavar="FILE", help=about)
    add_api(plan)
    about = "Namespace of the controller, whose learned predictions are used (default cotenant)."
    group(plan, "Kubernetes API").add_argument("-n", "--namespace", default=NAMESPACE, metavar="NAME", help=about)


def _plan(options: argparse.Namespace) -> int:
    from cotenant.cli.render.cluster_plan import show_plan
    from cotenant.cluster.plan import plan_on_snapshot

    if options.snapshot and options.save:
        raise ConfigError("--save", options.save, "has no effect with a SNAPSHOT; omit one of them")
    plan = plan_on_snapshot(Path(options.snapshot), options.place) if options.snapshot else _plan_on_kubernetes(options)
    if options.json:
        print_json(plan)
    else:
        show_plan(output(), plan)
    return 0


def _plan_on_kubernetes(options: argparse.Namespace) -> PlanReport:
    """Plan a round of the Kubernetes cluster that the flags name, from what its API stores."""
    from cotenant.cluster.kubernetes.controller.live_state import read_state
    from cotenant.cluster.plan import plan_on_state
    from cotenant.cluster.snapshot import encode_snapshot
    from cotenant.runner.atomic_file import replace_file
    from cotenant.runner.clock import unix_ns

    with closing(api_client(options)) as client:
        now = unix_ns()
        state = read_state(client, options.namespace, now, print_line)
        server = client.config.server
    if options.save:
        try:
            replace_file(Path(options.save), encode_snapshot(state, now))
        except OSError as error:
            remedy = f"cannot be written: {error.strerror}; choose another file"
            raise ConfigError("--save", options.save, remedy) from None
    return plan_on_state(state, now, server, options.place)
