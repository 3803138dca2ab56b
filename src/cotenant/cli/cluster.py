"""`cotenant cluster`: run the controller of a cluster, administer its nodes and users, and plan a placement round."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from cotenant.cli.command import (
    OUTPUT,
    add_command,
    add_verbs,
    group,
    load,
    output,
    print_json,
    print_line,
    whole_number,
)
from cotenant.cli.jobs import configure_client, identity
from cotenant.cli.parser import Parser


def configure_cluster(parser: Parser) -> None:
    verbs = add_verbs(parser)
    start = add_command(verbs, "start", "Run the controller of a cluster.", _start, "cluster", "directories")
    about = "Start with the readable part of a damaged journal; the rest is lost."
    start.add_argument("--accept-damage", action="store_true", help=about)
    about = "Run jobs of a cluster on this machine; `cotenant node --join` starts this by itself."
    agent = add_command(verbs, "agent", about, _agent, "agent", "directories")
    agent.add_argument("--until-eof", action="store_true", help="Stop when standard input ends.")
    about = "Compute one placement round from a snapshot: which job shares which GPU, and why others wait."
    plan = add_command(verbs, "plan", about, _plan, json=True)
    plan.add_argument("snapshot", metavar="SNAPSHOT", help="JSON file with the state of a cluster at one instant.")
    about = "Placement policy to use instead of the one in the snapshot."
    plan.add_argument("--place", default="", metavar="POLICY", help=about)
    _add_administration(verbs)


def _add_administration(verbs: Any) -> None:
    token = _add_client(verbs, "token", "Create a token with which nodes join the cluster.", _token)
    token.add_argument("--uses", default="1", metavar="N", help="Number of nodes that may join with it (default 1).")
    token.add_argument("--valid", default="24h", metavar="DURATION", help="Time until it expires (default 24h).")
    about = "Only for this node, which may have been a node of the cluster before."
    token.add_argument("--node", default="", metavar="NODE", help=about)
    _add_client(verbs, "nodes", "List the nodes of the cluster.", _nodes)
    drain = _add_client(verbs, "drain", "Move the jobs of a node to others and place no new ones on it.", _drain)
    drain.add_argument("node", metavar="NODE", help="Name of the node.")
    drain.add_argument("--undo", action="store_true", help="Allow the node to take jobs again.")
    forget = _add_client(verbs, "forget", "Remove a node that no longer reports.", _forget)
    forget.add_argument("node", metavar="NODE", help="Name of the node.")
    quota = _add_client(verbs, "quota", "Limit the GPUs that a user's jobs may hold.", _quota)
    quota.add_argument("user", metavar="USER", help="Name of the user.")
    quota.add_argument("--gpus", default=None, metavar="N", help="GPUs at the same time (default: no limit).")
    about = "Weight of the user in fair sharing, 1 to 1000 (default 1)."
    quota.add_argument("--weight", default="1", metavar="N", help=about)
    user = _add_client(verbs, "user", "Create an identity with which a user can submit jobs.", _user)
    user.add_argument("user", metavar="USER", help="Name of the user.")
    about = "File for the identity (default: USER.pem)."
    group(user, OUTPUT).add_argument("-o", "--output", default="", metavar="FILE", help=about)
    revoke = _add_client(verbs, "revoke", "Revoke the certificates of a node or a user.", _revoke)
    revoke.add_argument("name", metavar="NAME", help="Name of the node or user.")
    about = "What NAME is: node (default) or user."
    revoke.add_argument("--role", choices=("node", "user"), default="node", help=about)


def _add_client(verbs: Any, name: str, about: str, run: Any) -> Parser:
    parser: Parser = verbs.add_parser(name, help=about, description=about)
    configure_client(parser, run)
    return parser


def _start(options: argparse.Namespace) -> int:
    from cotenant.cluster.daemon.main import serve_cluster
    from cotenant.node.daemon.log import NodeLog

    config, directories = load(options)
    log = NodeLog(config.cluster.log, directories.state / "cluster" / "controller.log")
    serve_cluster(config.cluster, directories, log, accept_damage=options.accept_damage)
    return 0


def _agent(options: argparse.Namespace) -> int:
    from cotenant.cluster.daemon.agent_main import serve_agent

    config, directories = load(options)
    serve_agent(config.agent, directories, options.config, print_line, until_eof=options.until_eof)
    return 0


def _plan(options: argparse.Namespace) -> int:
    from cotenant.cli.render.cluster_plan import show_plan
    from cotenant.cluster.plan import plan_on_snapshot

    plan = plan_on_snapshot(Path(options.snapshot), options.place)
    if options.json:
        print_json(plan)
    else:
        show_plan(output(), plan)
    return 0


def _token(options: argparse.Namespace) -> int:
    from cotenant.cluster.daemon.commands import make_token
    from cotenant.units.text import parse_duration

    caller = identity(options)
    valid_ns = parse_duration(options.valid, field="--valid")
    token, controller = make_token(caller, whole_number("--uses", options.uses), valid_ns, options.node)
    if options.json:
        print_json({"token": token, "controller": controller})
    else:
        print(token)
    return 0


def _nodes(options: argparse.Namespace) -> int:
    from cotenant.cli.render.cluster import nodes_json, nodes_table
    from cotenant.cluster.daemon.commands import nodes

    node_list = nodes(identity(options))
    if options.json:
        print_json(nodes_json(node_list))
    else:
        output().print(nodes_table(node_list))
    return 0


def _drain(options: argparse.Namespace) -> int:
    from cotenant.cluster import wire
    from cotenant.cluster.daemon.commands import change
    from cotenant.cluster.daemon.enrol import check_name

    change(identity(options), wire.Drain(wire.VERSION, check_name(options.node, "NODE"), not options.undo))
    state = "takes jobs again" if options.undo else "is drained: its jobs move to other nodes, and it gets no new ones"
    return _done(options, f"{options.node} {state}")


def _forget(options: argparse.Namespace) -> int:
    from cotenant.cluster import wire
    from cotenant.cluster.daemon.commands import change
    from cotenant.cluster.daemon.enrol import check_name

    change(identity(options), wire.Forget(wire.VERSION, check_name(options.node, "NODE")))
    return _done(options, f"{options.node} is removed; it becomes a node again if it reports")


def _quota(options: argparse.Namespace) -> int:
    from cotenant.cluster import wire
    from cotenant.cluster.daemon.commands import change, quota_of

    gpus = None if options.gpus is None else whole_number("--gpus", options.gpus)
    quota = quota_of(options.user, gpus, whole_number("--weight", options.weight))
    change(identity(options), wire.SetQuota(wire.VERSION, quota))
    return _done(options, f"{options.user} may hold {'any number of' if gpus is None else gpus} GPUs at once")


def _user(options: argparse.Namespace) -> int:
    from cotenant.cluster.daemon.commands import make_user

    path = Path(options.output or f"{options.user.replace('/', '_')}.pem")
    user = make_user(identity(options), options.user, path)
    if options.json:
        print_json(
            {"user": user.name, "file": str(path), "controller": user.controller, "until_unix_ns": user.until_ns}
        )
    else:
        print_line(f"{path} is the identity of {user.name}, for: cotenant submit --identity {path}")
    return 0


def _revoke(options: argparse.Namespace) -> int:
    from cotenant.cluster import wire
    from cotenant.cluster.daemon.commands import change
    from cotenant.cluster.daemon.enrol import check_name

    role = wire.Role.USER if options.role == "user" else wire.Role.NODE
    change(identity(options), wire.Revoke(wire.VERSION, role, check_name(options.name, "NAME")))
    return _done(options, f"the certificates of {role.value} {options.name} are revoked")


def _done(options: argparse.Namespace, message: str) -> int:
    if options.json:
        print_json({"done": True})
    else:
        print_line(message)
    return 0
