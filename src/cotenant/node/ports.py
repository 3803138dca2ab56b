"""Ports of the node, which carry out its decisions, live or simulated."""

from __future__ import annotations

from typing import Protocol

from cotenant.gate.grant import Grant
from cotenant.gate.rules import GateEntry, GateRules
from cotenant.node.model.action import SignalKind
from cotenant.node.model.admission import Reject


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

    def kill(self, gpu: int, slot: int, pid: int) -> None:
        """Kill a tenant: its parent process, and all processes that the ledger attributes to it."""
        ...

    def restart_mps(self, gpu: int) -> None:
        """Start the MPS server of a device again."""
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

    def signal(self, peer: int, kind: SignalKind, why: str, *, may_restart: bool) -> None:
        """Tell a tenant's parent to ask its program to exit, or to kill it."""
        ...

    def suspend(self, peer: int, why: str) -> None:
        """Tell a tenant's parent to move its program's device memory to the host."""
        ...

    def restore(self, peer: int) -> None:
        """Tell a tenant's parent to move its program's memory back."""
        ...
