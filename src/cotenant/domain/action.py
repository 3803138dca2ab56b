"""What can a node decide? Every action names its cause: the turn whose event led to it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from cotenant.domain.control import Adjustment
from cotenant.domain.gate import GateRules, GateSeat
from cotenant.domain.plan import Reject
from cotenant.domain.protect import GpuWatch
from cotenant.domain.tenant import Terms
from cotenant.domain.value import Value

NO_PEER = -1
"""An action about a tenant that nobody is connected for."""
SignalKind = Literal["term", "kill"]


class Grant(Value, frozen=True, tag="grant"):
    """This peer holds this slot, under these terms."""

    cause: int
    peer: int
    tenant: str
    terms: Terms
    neighbours: int = 0
    """How many others are on its device, up to `NEIGHBOURS_LIMIT`: no promise, and told anew as they come and go."""


class Refuse(Value, frozen=True, tag="refuse"):
    """This peer gets nothing, and is told why."""

    cause: int
    peer: int
    reject: Reject


class Revoke(Value, frozen=True, tag="revoke"):
    """The slot is free again; its page says so to whoever still looks."""

    cause: int
    peer: int
    tenant: str
    slot: int
    generation: int
    ending: str


class Crowd(Value, frozen=True, tag="crowd"):
    """Somebody came to or left a device: whoever was or stays there has so many others beside it now."""

    cause: int
    where: int | tuple[int, ...]
    """The device, -1 for those that have none; a journal of an older version lists the slots of those who are there."""
    neighbours: int


class Roster(Value, frozen=True, tag="roster"):
    """The tenants of this device are these, and let each other pass by these rules.

    It comes before all else in its turn: whoever hears of a change, as a newcomer of its grant, finds it made.
    """

    cause: int
    gpu: int
    rules: GateRules


class Sit(Value, frozen=True, tag="sit"):
    """On the roster of this device one seat is new, or says something else; all the rest of it stays.

    Most turns change one seat. To say only that keeps the journal short; tenants always read a whole roster.
    """

    cause: int
    gpu: int
    seat: GateSeat


class Rise(Value, frozen=True, tag="rise"):
    """On the roster of this device nobody sits in this slot any more; all the rest of it stays."""

    cause: int
    gpu: int
    slot: int


class Confirm(Value, frozen=True, tag="confirm"):
    """This peer is told that what it wanted is so, for these tenants, and which rules are in force."""

    cause: int
    peer: int
    tenants: tuple[str, ...]
    rules: GateRules


class Signal(Value, frozen=True, tag="signal"):
    """A tenant's parent is told to ask its program to end ("term"), or to end it ("kill")."""

    cause: int
    peer: int
    slot: int
    generation: int
    kind: SignalKind
    why: str
    again: bool = False
    """Whether its parent may start it anew."""


class Kill(Value, frozen=True, tag="kill"):
    """The node itself ends a tenant, parent and all: nobody is there to do it, or did not."""

    cause: int
    gpu: int
    slot: int
    pid: int
    why: str


class Suspend(Value, frozen=True, tag="suspend"):
    """A tenant's parent is told to move its program's device memory to the host."""

    cause: int
    peer: int
    slot: int
    why: str


class Restore(Value, frozen=True, tag="restore"):
    """A tenant's parent is told to move its program's memory back to the device."""

    cause: int
    peer: int
    slot: int


class Watch(Value, frozen=True, tag="watch"):
    """A device is in another state now."""

    cause: int
    gpu: int
    watch: GpuWatch


class Adjusted(Value, frozen=True, tag="adjusted"):
    """The online tenants of a device keep another part of it; the roster of the same turn carries it out."""

    cause: int
    adjustment: Adjustment
    was_ppm: int
    """What they kept before."""


class Placed(Value, frozen=True, tag="placed"):
    """Why a newcomer is on this device, where a policy looked at who came; the grant of the same turn did it."""

    cause: int
    slot: int
    generation: int
    gpu: int
    why: str
    short_ppm: int = 0
    """What online tenants would need beyond the whole of it to keep their objectives, by prediction."""


class MpsRestart(Value, frozen=True, tag="mps-restart"):
    """The MPS server of a device is to be started again."""

    cause: int
    gpu: int


class Stop(Value, frozen=True, tag="stop"):
    """The daemon ends itself."""

    cause: int
    reason: str


Action: TypeAlias = (
    Grant
    | Refuse
    | Revoke
    | Crowd
    | Roster
    | Sit
    | Rise
    | Confirm
    | Signal
    | Kill
    | Suspend
    | Restore
    | Watch
    | Adjusted
    | Placed
    | MpsRestart
    | Stop
)


def promises(actions: list[Action]) -> list[tuple[int, int, Terms | None]]:
    """What a turn changed for tenants: slot, generation, and the terms granted or None for revoked.

    Two versions of the node that agree on this can follow each other, whatever words they use.
    """
    changed: list[tuple[int, int, Terms | None]] = []
    for action in actions:
        if isinstance(action, Grant):
            changed.append((action.terms.slot, action.terms.generation, action.terms))
        elif isinstance(action, Revoke):
            changed.append((action.slot, action.generation, None))
    return changed
