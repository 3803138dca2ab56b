"""Checks of this machine's part in a cluster: its controller, if it has one, and its node's certificate."""

from __future__ import annotations

from collections.abc import Iterator

from cotenant.cluster import wire
from cotenant.cluster.daemon.client import ControllerUnreachableError, talk
from cotenant.cluster.daemon.directories import controller_paths
from cotenant.cluster.daemon.identity import read_identity
from cotenant.errors import CotenantError
from cotenant.node.directories import Directories
from cotenant.runner.clock import local_time, unix_ns
from cotenant.units.text import counted


def examine_controller(directories: Directories) -> Iterator[tuple[bool, str, str]]:
    """Whether the controller of this directory answers, if there ever was one: good or not, what, and the remedy."""
    path = controller_paths(directories).operator
    if not path.exists():
        return
    try:
        with talk(read_identity(path)) as controller:
            lines = controller.ask(wire.ListNodes(wire.VERSION), wire.NodePage).nodes
    except ControllerUnreachableError as error:
        yield False, f"the cluster's controller is away: {error}", "start it with: cotenant cluster start"
        return
    except CotenantError as error:
        yield False, f"the cluster's controller cannot be asked: {error}", "see its log"
        return
    silent = [line.node for line in lines if line.is_silent]
    yield True, f"the cluster's controller answers; {counted(len(lines), 'node')}", ""
    if silent:
        message = f"{counted(len(silent), 'node')} of the cluster silent: {', '.join(silent[:5])}"
        yield False, message, "start their agents, or let them go with: cotenant cluster forget NODE"


def examine_node(directories: Directories) -> Iterator[tuple[bool, str, str]]:
    """Whether this machine's certificate as a node counts. It is not used: that would take its agent's place."""
    path = directories.state / "agent" / "identity.pem"
    if not path.exists():
        return
    try:
        identity = read_identity(path)
    except CotenantError as error:
        yield False, str(error), "join anew: cotenant node --join HOST:PORT --join-token-file FILE"
        return
    until = local_time(identity.until_ns)
    if unix_ns() >= identity.until_ns:
        remedy = f"join anew, with a token of: cotenant cluster token --node {identity.name}"
        yield False, f"the certificate of node {identity.name} has expired, at {until}", remedy
    else:
        yield (
            True,
            f"node {identity.name} of the cluster at {identity.controller}, its certificate counts until {until}",
            "",
        )
