"""The tenants of a node, from the node itself or, if none answers, from its journal."""

from __future__ import annotations

import msgspec

from cotenant.errors import InvariantError
from cotenant.node.client.connection import NodeUnavailableError, list_tenants
from cotenant.node.directories import Directories
from cotenant.node.host import same_promises
from cotenant.node.journal import NodeJournalReader
from cotenant.node.model.control import OnlineShareSetpoint
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.protection import GpuWatch
from cotenant.node.model.tenant import TenantView
from cotenant.node.state.node import NodeMachine
from cotenant.runner.host import Divergence, replay
from cotenant.runner.journal_file import Recovery
from cotenant.units.instant import Instant


class NodeSnapshot(msgspec.Struct, frozen=True):
    """The tenants at one instant of the node's clock: now, or the last recorded instant."""

    is_served: bool
    now_ns: Instant
    tenants: list[TenantView]
    gpus: list[Gpu]
    devices: list[GpuWatch]
    setpoints: list[OnlineShareSetpoint] = []
    is_restricted: bool = False
    """Whether only the tenants of the caller are here."""


def read_node_snapshot(directories: Directories) -> NodeSnapshot:
    """Return the node's tenants; for a node that is down, from the readable part of its journal."""
    try:
        answer = list_tenants(directories)
    except NodeUnavailableError:
        return _snapshot_from_journal(directories)
    return NodeSnapshot(
        True,
        answer.now_ns,
        answer.tenants,
        answer.gpus,
        answer.devices,
        answer.setpoints,
        answer.is_restricted,
    )


def _snapshot_from_journal(directories: Directories) -> NodeSnapshot:
    machine = NodeMachine()
    recovery = Recovery(directories.journal, NodeJournalReader)
    try:
        replay(machine, recovery.turns(), same_promises)
    except (InvariantError, Divergence):
        return NodeSnapshot(False, recovery.last_instant, [], [], [])
    gpus = list(machine.settings.gpus)
    return NodeSnapshot(
        False,
        recovery.last_instant,
        machine.tenants(),
        gpus,
        machine.watches(),
        list(machine.registry.tables.setpoints.values()),
    )
