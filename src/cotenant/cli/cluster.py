"""What can be asked of a cluster's brain by whoever operates it?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from cotenant.cli.agent import add_agent
from cotenant.cli.command import add_command, load, print_json, say
from cotenant.cli.jobs import asking, identity, whole


def add_commands(commands: Any) -> None:
    about = "A cluster: its brain, its nodes, who may join and who may submit."
    parser: argparse.ArgumentParser = commands.add_parser("cluster", help=about, description=about)
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    start = add_command(verbs, "start", "Be the brain of a cluster.", _start, "directories", "cluster")
    start.add_argument(
        "--accept-damage", action="store_true", help="begin with the sound part of a damaged journal; the rest is lost"
    )
    add_agent(verbs)
    token = asking(verbs, "token", "Make a join token for nodes.", _token)
    token.add_argument("--uses", default="1", metavar="N", help="how many nodes may join with it (default 1)")
    token.add_argument("--valid", default="24h", metavar="DURATION", help="for how long (default 24h)")
    token.add_argument("--node", default="", metavar="NODE", help="for this node only, also if it was one before")
    asking(verbs, "nodes", "Which nodes are there?", _nodes)
    drain = asking(verbs, "drain", "Have a node's jobs elsewhere, and nothing new on it.", _drain)
    drain.add_argument("node", metavar="NODE")
    drain.add_argument("--undo", action="store_true", help="let it take jobs again")
    forget = asking(verbs, "forget", "Tell no more of a node that is silent for good.", _forget)
    forget.add_argument("node", metavar="NODE")
    quota = asking(verbs, "quota", "How much may a user's jobs hold?", _quota)
    quota.add_argument("user", metavar="USER")
    quota.add_argument("--gpus", default=None, metavar="N", help="GPUs at once (default: as many as there are)")
    quota.add_argument("--weight", default="1", metavar="N", help="the user's part in fairness, 1 to 1000 (default 1)")
    user = asking(verbs, "user", "Make an identity with which a user may submit jobs.", _user)
    user.add_argument("user", metavar="USER")
    user.add_argument("--to", default="", metavar="FILE", help="where to (default USER.pem)")
    revoke = asking(verbs, "revoke", "Let the certificates of a node or a user count no more.", _revoke)
    revoke.add_argument("name", metavar="NODE")
    revoke.add_argument("--user", action="store_true", help="it is a user's name, not a node's")


def _start(options: argparse.Namespace) -> int:
    from cotenant.apps.cluster import serve_cluster
    from cotenant.live.observe.log import NodeLog

    config, where = load(options)
    log = NodeLog(config.cluster.log, where.state / "cluster" / "brain.log")
    serve_cluster(config.cluster, where, log, accept_damage=options.accept_damage)
    return 0


def _token(options: argparse.Namespace) -> int:
    from cotenant.apps.cluster_ask import make_token
    from cotenant.format.quantity import parse_duration

    asker = identity(options)
    valid_ns = parse_duration(options.valid, field="--valid")
    made, brain = make_token(asker, whole("--uses", options.uses), valid_ns, options.node)
    if options.json:
        print_json({"token": made, "brain": brain})
    else:
        print(made)
    return 0


def _nodes(options: argparse.Namespace) -> int:
    from rich.console import Console

    from cotenant.apps.cluster_ask import nodes
    from cotenant.apps.show_cluster import nodes_json, nodes_table

    shown = nodes(identity(options))
    if options.json:
        print_json(nodes_json(shown))
    else:
        Console().print(nodes_table(shown))
    return 0


def _drain(options: argparse.Namespace) -> int:
    from cotenant.apps.cluster_ask import change
    from cotenant.format import cluster_wire as wire
    from cotenant.live.cluster.enrol import check_name

    change(identity(options), wire.Drain(wire.VERSION, check_name(options.node, "NODE"), not options.undo))
    told = "takes jobs again" if options.undo else "is drained: its jobs go elsewhere, and it gets no new ones"
    return _done(options, f"{options.node} {told}")


def _forget(options: argparse.Namespace) -> int:
    from cotenant.apps.cluster_ask import change
    from cotenant.format import cluster_wire as wire
    from cotenant.live.cluster.enrol import check_name

    change(identity(options), wire.Forget(wire.VERSION, check_name(options.node, "NODE")))
    return _done(options, f"{options.node} is forgotten; if it reports again, it is a node again")


def _quota(options: argparse.Namespace) -> int:
    from cotenant.apps.cluster_ask import change, quota_of
    from cotenant.format import cluster_wire as wire

    gpus = None if options.gpus is None else whole("--gpus", options.gpus)
    quota = quota_of(options.user, gpus, whole("--weight", options.weight))
    change(identity(options), wire.SetQuota(wire.VERSION, quota))
    return _done(options, f"{options.user} may hold {'any number of' if gpus is None else gpus} GPUs at once")


def _user(options: argparse.Namespace) -> int:
    from cotenant.apps.cluster_ask import make_user

    path = Path(options.to or f"{options.user.replace('/', '_')}.pem")
    made = make_user(identity(options), options.user, path)
    told = f"{path} is {made.name}'s: hand it over, for cotenant submit --identity {path}"
    if options.json:
        print_json({"user": made.name, "file": str(path), "brain": made.brain, "until_unix_ns": made.until_ns})
    else:
        say(told)
    return 0


def _revoke(options: argparse.Namespace) -> int:
    from cotenant.apps.cluster_ask import change
    from cotenant.format import cluster_wire as wire
    from cotenant.live.cluster.enrol import check_name

    role = wire.Role.USER if options.user else wire.Role.NODE
    change(identity(options), wire.Revoke(wire.VERSION, role, check_name(options.name, "NODE")))
    return _done(options, f"no certificate of {role.value} {options.name} counts any more")


def _done(options: argparse.Namespace, told: str) -> int:
    if options.json:
        print_json({"done": True})
    else:
        say(told)
    return 0
