"""Actions of the node: what its state machine decides. Each action names the turn that caused it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from cotenant.gate.grant import Grant
from cotenant.gate.rules import GateEntry, GateRules
from cotenant.node.model.admission import Reject
from cotenant.node.model.control import Adjustment
from cotenant.node.model.protection import GpuWatch
from cotenant.units.value import Value

NO_PEER = -1
"""The peer of an action that concerns a tenant without a connection."""
SignalKind = Literal["term", "kill"]


class IssueGrant(Value, frozen=True, tag="issue-grant"):
    """Give a tenant its slot under these conditions and tell the peer."""

    cause: int
    peer: int
    tenant: str
    grant: Grant
    neighbours: int = 0
    """Number of other tenants on the device, at most `NEIGHBOURS_LIMIT`; updated as tenants join and leave."""
    more_neighbours: tuple[int, ...] = ()
    """The same for its further devices."""


class Refuse(Value, frozen=True, tag="refuse"):
    """Refuse a peer's request with a reason."""

    cause: int
    peer: int
    reject: Reject


class Revoke(Value, frozen=True, tag="revoke"):
    """Free a slot and mark its grant page as revoked."""

    cause: int
    peer: int
    tenant: str
    slot: int
    generation: int
    ending: str


class SetNeighbourCount(Value, frozen=True, tag="set-neighbour-count"):
    """Tell all tenants of a device how many other tenants are on it."""

    cause: int
    where: int | tuple[int, ...]
    """The device, or -1 for tenants without one; journals of older versions list slots instead."""
    neighbours: int


class SetTenantTable(Value, frozen=True, tag="set-tenant-table"):
    """Replace the tenant table of a device, with the rules of its gate.

    Table actions precede all other actions of a turn: a tenant that receives its grant finds its entry in the table.
    """

    cause: int
    gpu: int
    rules: GateRules


class UpsertEntry(Value, frozen=True, tag="upsert-entry"):
    """Add or change one entry of a device's tenant table; the other entries stay.

    Most turns change one entry. Recording only that entry keeps the journal short; tenants always read the whole table.
    """

    cause: int
    gpu: int
    entry: GateEntry


class RemoveEntry(Value, frozen=True, tag="remove-entry"):
    """Remove the entry of a slot from a device's tenant table; the other entries stay."""

    cause: int
    gpu: int
    slot: int


class Confirm(Value, frozen=True, tag="confirm"):
    """Tell a peer that its command was carried out for these tenants, and which rules are in force."""

    cause: int
    peer: int
    tenants: tuple[str, ...]
    rules: GateRules


class SignalTenant(Value, frozen=True, tag="signal"):
    """Tell a tenant's parent to ask its program to exit ("term") or to kill it ("kill")."""

    cause: int
    peer: int
    slot: int
    generation: int
    kind: SignalKind
    why: str
    may_restart: bool = False
    """Whether the parent may start the program again."""


class KillTenant(Value, frozen=True, tag="kill"):
    """Kill a tenant from the daemon: its parent is not connected, did not do it in time, or is not to be trusted."""

    cause: int
    gpu: int
    slot: int
    pid: int
    why: str
    keep_parent: bool = False
    """Whether the parent, which was told to end, stays to report the end, unless it uses the device itself."""


class SuspendTenant(Value, frozen=True, tag="suspend"):
    """Tell a tenant's parent to move its program's device memory to the host."""

    cause: int
    peer: int
    slot: int
    why: str


class RestoreTenant(Value, frozen=True, tag="restore"):
    """Tell a tenant's parent to move its program's memory back to the device."""

    cause: int
    peer: int
    slot: int


class ReportGpuHealth(Value, frozen=True, tag="report-gpu-health"):
    """The health of a device changed; observers log it."""

    cause: int
    gpu: int
    watch: GpuWatch


class SetOnlineShare(Value, frozen=True, tag="set-online-share"):
    """The online share of a device changed; the tenant table of the same turn puts it into effect."""

    cause: int
    adjustment: Adjustment
    was_ppm: int
    """The online share before."""


class RecordPlacement(Value, frozen=True, tag="record-placement"):
    """Why the place policy chose this device for a tenant; the grant of the same turn put it into effect."""

    cause: int
    slot: int
    generation: int
    gpu: int
    why: str
    shortfall_ppm: int = 0
    """Predicted share beyond the whole device that online tenants need for their objectives."""
    more_gpus: tuple[int, ...] = ()
    """Its further devices."""


class RestartMps(Value, frozen=True, tag="restart-mps"):
    """Start the MPS server of a device again."""

    cause: int
    gpu: int


class Stop(Value, frozen=True, tag="stop"):
    """End the daemon."""

    cause: int
    reason: str


Action: TypeAlias = (
    IssueGrant
    | Refuse
    | Revoke
    | SetNeighbourCount
    | SetTenantTable
    | UpsertEntry
    | RemoveEntry
    | Confirm
    | SignalTenant
    | KillTenant
    | SuspendTenant
    | RestoreTenant
    | ReportGpuHealth
    | SetOnlineShare
    | RecordPlacement
    | RestartMps
    | Stop
)


def promises(actions: list[Action]) -> list[tuple[int, int, Grant | None]]:
    """Return what a turn granted: slot, generation, and the grant, or None where it was revoked.

    A version of the node may take over the journal of another version if both grant the same, whatever their messages.
    """
    changed: list[tuple[int, int, Grant | None]] = []
    for action in actions:
        if isinstance(action, IssueGrant):
            changed.append((action.grant.slot, action.grant.generation, action.grant))
        elif isinstance(action, Revoke):
            changed.append((action.slot, action.generation, None))
    return changed
