"""Ports of the node, which carry out its decisions, live or simulated."""

from __future__ import annotations

from typing import Protocol, TypeAlias

import msgspec

from cotenant.gate.grant import Grant
from cotenant.gate.rules import GateEntry, GateRules
from cotenant.node.model.action import SignalKind
from cotenant.node.model.admission import Reject
from cotenant.node.model.gang import GangKey
from cotenant.node.model.peer import PeerIdentity
from cotenant.node.model.preemption import PreemptionLevel, TimeSlice

TenantKey: TypeAlias = tuple[int, int]
"""Slot and generation of a tenant."""


class Pages(Protocol):
    """Grant pages: one per slot, readable by its tenant without a request."""

    def publish(self, grant: Grant, neighbours: int) -> int:
        """Write a slot's grant and neighbour count; return a handle that the listener passes on."""
        ...

    def revoke(self, slot: int, generation: int) -> None:
        """Mark on the page that this generation no longer holds the slot."""
        ...

    def set_neighbour_count(self, gpu: int, neighbours: int) -> None:
        """Write the neighbour count to the pages of all tenants of a device."""
        ...

    def neighbours(self, slot: int) -> int:
        """Return the neighbour count on the page, or -1 if the slot is free."""
        ...

    def read(self, slot: int) -> Grant | None:
        """Return the grant in force, or None if the slot is free."""
        ...


class Gates(Protocol):
    """The gate files: per device, a tenant table and one page per slot."""

    def set_table(self, gpu: int, rules: GateRules) -> None:
        """Replace the tenant table and rules of a device in one step; pages of new tenants are cleared first."""
        ...

    def upsert(self, gpu: int, entry: GateEntry) -> None:
        """Add or change one entry of the table; the others stay."""
        ...

    def remove(self, gpu: int, slot: int) -> None:
        """Remove one entry of the table; the others stay."""
        ...

    def read(self, gpu: int) -> GateRules | None:
        """Return the tenant table of a device, or None if it has none."""
        ...

    def handles(self, gpu: int) -> tuple[int, ...]:
        """Return the handles for reading and writing a device's gate file; none without a device."""
        ...


class Ledgers(Protocol):
    """The memory ledgers: one file per device with one account per slot."""

    def grant(self, gpu: int, slot: int, generation: int) -> None:
        """Assign the account of a slot to a generation; its own entries stay if it had the account already."""
        ...

    def held(self, gpu: int, slot: int) -> int:
        """Return the device memory that a tenant holds, in bytes."""
        ...

    def handles(self, gpu: int) -> tuple[int, ...]:
        """Return the handles for reading and writing a device's ledger; none without a device."""
        ...


class Enforcer(Protocol):
    """Acts on processes and on MPS servers."""

    def kill(self, gpu: int, slot: int, pid: int, *, keep_parent: bool = False) -> None:
        """Kill all processes of a tenant, its parent included unless `keep_parent`."""
        ...

    def restart_mps(self, gpu: int) -> None:
        """Start the MPS server of a device again."""
        ...


class ProcessPage(msgspec.Struct, frozen=True):
    """The shared pages of one attached process, which all processes of its device map."""

    gpu: int
    index: int
    generation: int
    """The generation of the process, not of its tenant."""
    epoch: int
    """Increases with every attached process of the device."""
    descriptor: int
    """Owned by the registry of processes; valid until the process is removed."""


class Attachment(msgspec.Struct, frozen=True):
    """The result of attaching a process."""

    index: int
    generation: int
    epoch: int
    descriptors: tuple[int, ...]
    """Those that accompany `attached`: the tenant's grant page and, with a device, its table and arbitration page."""


class PageListener(Protocol):
    """Receives what the registry of processes reports."""

    def page_added(self, page: ProcessPage) -> None:
        """Push a new process's pages to the other processes of the device; called before the table names it.

        The registry returns these pages from `page` already.
        """
        ...

    def last_process_left(self, tenant: TenantKey) -> None:
        """Release a tenant that joined by itself: its last attached process has left."""
        ...


class Processes(Protocol):
    """The registry of the tenants' processes, each identified by a pidfd of a socket peer."""

    def listen(self, listener: PageListener) -> None:
        """Set the receiver of reports, before the first process attaches."""
        ...

    def attach(
        self, gpu: int, tenant: TenantKey, peer: PeerIdentity, descriptor: int, previous: tuple[int, int] | None
    ) -> Attachment | Reject:
        """Attach a process with its pages to a tenant; `gpu` -1: the node has no device.

        `previous` is the index and generation that the process had before it reconnected; it keeps them if possible.
        The registry owns `descriptor` from now on, also if it raises `PeerError` because the pages are not valid, and
        duplicates `peer.pidfd`. It calls `page_added` before it writes the table. A refusal: no index is free.
        """
        ...

    def join_gang(self, gpu: int, index: int, gang: GangKey) -> int:
        """Make an attached process a rank of a job until it leaves; return the handle of the ranks' page."""
        ...

    def disconnect(self, gpu: int, index: int, generation: int) -> None:
        """The connection of an attached process closed: it leaves when it ends or 5 s later, unless it reattaches."""
        ...

    def supervise(self, tenant: TenantKey, peer: PeerIdentity) -> None:
        """Register the process that joined for a tenant (`cotenant run`); its descendants belong to the tenant."""
        ...

    def remove(self, tenant: TenantKey) -> None:
        """Forget all processes of a tenant whose slot was released; `last_process_left` is not called for it."""
        ...

    def page(self, gpu: int, index: int) -> ProcessPage | None:
        """Return the present pages at an index; None if no process has it."""
        ...

    def pages(self, gpu: int) -> list[ProcessPage]:
        """Return the pages of all attached processes of a device, by index."""
        ...

    def tenant_of(self, pid: int) -> TenantKey | None:
        """Return the tenant of a process by descent: it or an ancestor is attached or supervises the tenant."""
        ...

    def related(self, peer: PeerIdentity) -> list[TenantKey]:
        """Return the tenants that have a process in the peer's container cgroup or process group.

        Only processes with the peer's user id count. The listener compares the fields of the join.
        """
        ...

    def shares_container(self, tenant: TenantKey, peer: PeerIdentity) -> bool:
        """Return whether a process of the tenant is in the same container cgroup as the peer."""
        ...

    def count(self, tenant: TenantKey, gpu: int | None = None) -> int:
        """Return how many processes of a tenant are attached, on one device or summed over all."""
        ...

    def signal(self, tenant: TenantKey, number: int) -> None:
        """Send a signal to the tenant's attached processes and their descendants, through pidfds."""
        ...


class Listener(Protocol):
    """Sends messages to the peers. A message to a closed connection is dropped without an error."""

    def welcome(self, peer: int, tenant: str, grant: Grant, handles: tuple[int, ...]) -> None:
        """Tell a peer that it is a tenant, and pass on its page and its device's files."""
        ...

    def confirm(self, peer: int, tenants: tuple[str, ...], rules: GateRules) -> None:
        """Tell a peer that its command was carried out for these tenants, and which rules are in force."""
        ...

    def refuse(self, peer: int, reject: Reject) -> None:
        """Tell a peer why its request was refused."""
        ...

    def farewell(self, peer: int, ending: str) -> None:
        """Tell a peer that its slot is free again."""
        ...

    def released(self, slot: int, generation: int) -> None:
        """Forget the processes of a tenant whose slot was released."""
        ...

    def signal(self, peer: int, kind: SignalKind, why: str, *, may_restart: bool) -> None:
        """Tell a tenant's parent to ask its program to exit, or to kill it."""
        ...

    def suspend(self, peer: int, why: str) -> None:
        """Tell a tenant's parent to move its program's device memory to the host."""
        ...

    def restore(self, peer: int) -> None:
        """Tell a tenant's parent to move its program's memory back."""
        ...


class Preemption(Protocol):
    """Preemption of running kernels by the driver of one device."""

    def level(self) -> PreemptionLevel:
        """Return the level that the device offers now."""
        ...

    def time_slice(self) -> TimeSlice:
        """Return the length of its time slices; raise `WorldError` below that level."""
        ...

    def set_time_slice(self, time_slice: TimeSlice) -> None:
        """Set the length of its time slices; raise `WorldError` below that level."""
        ...
