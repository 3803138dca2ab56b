"""Where does cotenant touch the outside? Every seam is a Protocol in this list, with a live and a double."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cotenant.domain.action import SignalKind
from cotenant.domain.clusters import AckEnd, Answer, StartJob, StopJob
from cotenant.domain.gate import GateRules, GateSeat
from cotenant.domain.instant import Instant
from cotenant.domain.plan import Reject
from cotenant.domain.serving import Run, TurnAway
from cotenant.domain.tenant import Terms
from cotenant.domain.value import Value


class Clock(Protocol):
    """What time is it? Nanoseconds that never go back, from an origin that means nothing."""

    def now(self) -> Instant:
        """The present instant."""
        ...


class Journal(Protocol):
    """The record that outlives the process."""

    def append(self, now: Instant, event: Value, actions: Sequence[Value]) -> bool:
        """Write one turn so that the death of this process cannot lose it; True once the segment is past its limit."""
        ...

    def begin_segment(self, now: Instant, head: Value) -> None:
        """Start a new segment with this event at its head; the one before is kept aside."""
        ...


class Pages(Protocol):
    """The terms pages: one per slot, readable by the tenant without asking anybody."""

    def publish(self, terms: Terms, neighbours: int) -> int:
        """Write the terms of a slot and how many others are on its device; returns a handle for the door to pass on."""
        ...

    def revoke(self, slot: int, generation: int) -> None:
        """Say on the page that this generation holds the slot no more."""
        ...

    def crowd(self, gpu: int, neighbours: int) -> None:
        """Say on the pages of all who are on a device how many others there are now."""
        ...

    def neighbours(self, slot: int) -> int:
        """How many others the page speaks of, or -1 when the slot is free."""
        ...

    def read(self, slot: int) -> Terms | None:
        """The terms in force, or None when the slot is free."""
        ...


class Gates(Protocol):
    """What the tenants of a device know of each other: one roster per device, and a page per slot."""

    def seat(self, gpu: int, rules: GateRules) -> None:
        """Say who is on a device and by which rules, in one step; a newcomer finds its own page empty."""
        ...

    def sit(self, gpu: int, seat: GateSeat) -> None:
        """Add one seat to the roster, or change it; the rest stays as it was said last."""
        ...

    def rise(self, gpu: int, slot: int) -> None:
        """Take one seat off the roster; the rest stays as it was said last."""
        ...

    def read(self, gpu: int) -> GateRules | None:
        """What the roster of a device says, or None where there is none."""
        ...

    def handles(self, gpu: int) -> tuple[int, ...]:
        """For the door to pass on: to look at what belongs to a device, and to write to it; none for no device."""
        ...


class Ledgers(Protocol):
    """What the tenants of a device hold of its memory: one file per device, an account per slot."""

    def grant(self, gpu: int, slot: int, generation: int) -> None:
        """The account of a slot is this generation's from now on; one that has it already keeps its lines."""
        ...

    def held(self, gpu: int, slot: int) -> int:
        """The device memory that a tenant holds, in bytes."""
        ...

    def handles(self, gpu: int) -> tuple[int, ...]:
        """For the door to pass on: to look at the accounts of a device, and to write to them; none for no device."""
        ...


class Wardens(Protocol):
    """What the node does to processes and devices, when it must."""

    def kill(self, gpu: int, slot: int, pid: int) -> None:
        """End a tenant: the parent with this number, and whatever else the ledger says is the tenant's."""
        ...

    def restart_mps(self, gpu: int) -> None:
        """Start the MPS server of a device again."""
        ...


class Door(Protocol):
    """The way to the peers. A peer that is gone is told nothing, and that is no error."""

    def welcome(self, peer: int, tenant: str, terms: Terms, handles: tuple[int, ...]) -> None:
        """Tell a peer that it is a tenant, and hand it its page and what belongs to its device."""
        ...

    def confirm(self, peer: int, tenants: tuple[str, ...], rules: GateRules) -> None:
        """Tell a peer that what it wanted is so for these tenants, and which rules are in force."""
        ...

    def refuse(self, peer: int, reject: Reject) -> None:
        """Tell a peer why not."""
        ...

    def farewell(self, peer: int, ending: str) -> None:
        """Tell a peer that its slot is free again."""
        ...

    def signal(self, peer: int, kind: SignalKind, why: str, *, again: bool) -> None:
        """Tell a tenant's parent to ask its program to end, or to end it."""
        ...

    def suspend(self, peer: int, why: str) -> None:
        """Tell a tenant's parent to move its program's device memory to the host."""
        ...

    def restore(self, peer: int) -> None:
        """Tell a tenant's parent to move its program's memory back."""
        ...


class Runtime(Protocol):
    """What runs models. The end of each run comes back as a `Finished`, once, whatever became of it."""

    def start(self, run: Run) -> None:
        """Begin a run; its requests are answered when it ends."""
        ...

    def release(self, model: str, key: int) -> None:
        """Let go of a loading of a model, of which nothing runs and nothing waits."""
        ...


class Desk(Protocol):
    """Where the requests of a server came in, and are answered. One that was cancelled is told nothing."""

    def turn_away(self, refusal: TurnAway) -> None:
        """Tell a request's sender no."""
        ...

    def drained(self) -> None:
        """All is answered that was taken."""
        ...


class ClusterDoor(Protocol):
    """How a cluster reaches its nodes and users. What it sends may be lost: the machine sends it again."""

    def start(self, order: StartJob) -> None:
        """Tell a node to run an attempt."""
        ...

    def stop(self, order: StopJob) -> None:
        """Tell a node to end one."""
        ...

    def acknowledge(self, order: AckEnd) -> None:
        """Tell a node that the end of one was taken note of."""
        ...

    def answer(self, answer: Answer) -> None:
        """Tell who asked."""
        ...
