"""Is this machine's part in a cluster in order? Its brain, if it has one, and its node's certificate."""

from __future__ import annotations

from collections.abc import Iterator

from cotenant.errors import CotenantError
from cotenant.format import cluster_wire as wire
from cotenant.format.quantity import counted
from cotenant.live.clock import time_of_day, unix_ns
from cotenant.live.cluster.ask import BrainAwayError, talk
from cotenant.live.cluster.identity import read_identity
from cotenant.live.cluster.places import brain_places
from cotenant.live.directory import Places


def examine_brain(places: Places) -> Iterator[tuple[bool, str, str]]:
    """Whether the brain of this directory answers, if there ever was one: good or not, what, and the remedy."""
    path = brain_places(places).operator
    if not path.exists():
        return
    try:
        with talk(read_identity(path)) as brain:
            lines = brain.ask(wire.ListNodes(wire.VERSION), wire.Nodes).nodes
    except BrainAwayError as error:
        yield False, f"the cluster's brain is away: {error}", "start it with: cotenant cluster start"
        return
    except CotenantError as error:
        yield False, f"the cluster's brain cannot be asked: {error}", "see its log"
        return
    silent = [line.node for line in lines if line.is_silent]
    yield True, f"the cluster's brain answers; {counted(len(lines), 'node')}", ""
    if silent:
        told = f"{counted(len(silent), 'node')} of the cluster silent: {', '.join(silent[:5])}"
        yield False, told, "start their agents, or let them go with: cotenant cluster forget NODE"


def examine_node(places: Places) -> Iterator[tuple[bool, str, str]]:
    """Whether this machine's certificate as a node counts. It is not used: that would take its agent's place."""
    path = places.state / "agent" / "identity.pem"
    if not path.exists():
        return
    try:
        identity = read_identity(path)
    except CotenantError as error:
        yield False, str(error), "join anew: cotenant node --join HOST:PORT --join-token-file FILE"
        return
    until = time_of_day(identity.until_ns)
    if unix_ns() >= identity.until_ns:
        remedy = f"join anew, with a token of: cotenant cluster token --node {identity.name}"
        yield False, f"the certificate of node {identity.name} has expired, at {until}", remedy
    else:
        yield True, f"node {identity.name} of the cluster at {identity.brain}, its certificate counts until {until}", ""
