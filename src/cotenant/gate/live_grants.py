"""Grant pages and accounts of tenants, in sealed memory that the processes of the tenant map."""

from __future__ import annotations

import mmap
from collections.abc import Mapping

from cotenant.errors import PeerError
from cotenant.gate import grant_page
from cotenant.gate.grant import Grant
from cotenant.gate.node_page import NodePage
from cotenant.gate.process_pages import Measurement, write_account


class _Slot:
    """The page of the tenant in one slot, and the state from which it is written."""

    def __init__(self, grant: Grant, page: NodePage) -> None:
        self.page = page
        self.grant = grant
        self.neighbours = 0
        self.measured: frozenset[int] = frozenset()  # the indexes that have a measurement
        self.page.write(grant_page.format_page)

    def write(self) -> None:
        grant, neighbours = self.grant, self.neighbours
        self.page.write(lambda memory: grant_page.write_grant(memory, grant, neighbours))

    def revoke(self) -> None:
        grant = self.grant
        self.page.write(lambda memory: grant_page.write_revoked(memory, grant.slot, grant.generation))
        self.page.close()


class LiveGrantPages:
    """One page per tenant; a later tenant of the slot gets another page, so that no process sees another's grant."""

    def __init__(self) -> None:
        """Begin without grants."""
        self._slots: dict[int, _Slot] = {}
        self._unused: list[NodePage] = []

    def reserve(self, count: int) -> str:
        """Create pages until `count` are unused, so that as many tenants can join; return why not, or nothing."""
        try:
            while len(self._unused) < count:
                self._unused.append(_create_page())
        except OSError as error:
            return f"the memory of a grant page cannot be created: {error.strerror}"
        return ""

    def publish(self, grant: Grant, neighbours: int) -> int:
        """Write the grant of a slot and return the descriptor for its tenant."""
        slot = self._slots.get(grant.slot)
        if slot is not None and slot.grant.generation != grant.generation:
            slot.revoke()
            slot = None
        if slot is None:
            page = self._unused.pop() if self._unused else _create_page()
            slot = self._slots[grant.slot] = _Slot(grant, page)
        slot.grant, slot.neighbours = grant, neighbours
        slot.write()
        return slot.page.descriptor

    def revoke(self, slot: int, generation: int) -> None:
        """Revoke the grant of this generation; the grant of a later generation stays."""
        held = self._slots.get(slot)
        if held is not None and held.grant.generation == generation:
            held.revoke()
            del self._slots[slot]

    def set_neighbour_count(self, gpu: int, neighbours: int) -> None:
        """Change the number of other tenants on the pages of a device."""
        for slot in self._slots.values():
            if slot.grant.gpu == gpu:
                slot.neighbours = neighbours
                slot.write()

    def set_account(
        self, slot: int, generation: int, amounts: tuple[int, int, int], measurements: Mapping[int, Measurement]
    ) -> None:
        """Write the account of a tenant: the bytes of a context, unattached and reclaimable, and the measurements.

        A measurement of an index that is not given any more is removed.
        """
        held = self._slots.get(slot)
        if held is not None and held.grant.generation == generation:
            removed = dict.fromkeys(held.measured - measurements.keys(), Measurement(0, 0, 0))
            held.measured = frozenset(measurements)
            held.page.write(lambda memory: write_account(memory, *amounts, {**removed, **measurements}))

    def read(self, slot: int) -> Grant | None:
        """Return the grant of a slot; None if it is free."""
        held = self._slots.get(slot)
        return None if held is None else held.grant

    def neighbours(self, slot: int) -> int:
        """Return the number of other tenants on the slot's device; -1 if the slot is free."""
        held = self._slots.get(slot)
        return -1 if held is None else held.neighbours

    def handle(self, slot: int) -> int:
        """Return the descriptor of a granted page."""
        return self._slots[slot].page.descriptor

    def repair(self) -> list[int]:
        """Compare the pages with the state, rewrite those that differ, and return their slots."""
        return [number for number, slot in self._slots.items() if slot.page.repair()]

    def close(self) -> None:
        """Unmap the pages; processes that have mapped them keep the last grants."""
        for page in [*self._unused, *(slot.page for slot in self._slots.values())]:
            page.close()
        self._unused.clear()
        self._slots.clear()


def _create_page() -> NodePage:
    return NodePage("cotenant-grant", grant_page.PAGE_BYTES)


def read_grant_descriptor(descriptor: int) -> Grant | None:
    """Return the grant on the page of a descriptor; raise `PeerError` if it is no grant page."""
    try:
        with mmap.mmap(descriptor, grant_page.PAGE_BYTES, access=mmap.ACCESS_READ) as page:
            return grant_page.read_grant(page)  # type: ignore[arg-type]  # an mmap is a buffer, typeshed does not say so
    except (OSError, ValueError, OverflowError) as error:
        raise PeerError(f"descriptor {descriptor} is no grant page: {error}") from None


def slot_text(grant: Grant) -> str:
    """Return SLOT/GENERATION, which distinguishes a tenant's grant from that of a later holder of the slot."""
    return f"{grant.slot}/{grant.generation}"
