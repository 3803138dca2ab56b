"""Grant pages and accounts of tenants, in sealed memory that the processes of the tenant map."""

from __future__ import annotations

import mmap
from collections.abc import Mapping

import msgspec

from cotenant.errors import PeerError
from cotenant.gate import grant_page
from cotenant.gate.grant import Grant
from cotenant.gate.node_page import NodePage
from cotenant.gate.process_pages import Measurement, write_account


class _Slot:
    """The page of the tenant in one slot for one of its devices, and the state from which it is written."""

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
    """One page per tenant and device; a later tenant of the slot gets others, so that none sees another's grant."""

    def __init__(self) -> None:
        """Begin without grants."""
        self._slots: dict[int, dict[int, _Slot]] = {}  # by slot, then by device in the order of the tenant
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
        """Write the grant of a slot on one device and return the descriptor for its tenant."""
        held = self._slots.setdefault(grant.slot, {})
        if any(earlier.grant.generation != grant.generation for earlier in held.values()):
            for earlier in held.values():
                earlier.revoke()
            held.clear()
        slot = held.get(grant.gpu)
        if slot is None:
            page = self._unused.pop() if self._unused else _create_page()
            slot = held[grant.gpu] = _Slot(grant, page)
        slot.grant, slot.neighbours = grant, neighbours
        slot.write()
        return slot.page.descriptor

    def revoke(self, slot: int, generation: int) -> None:
        """Revoke the grant of this generation on all devices; the grant of a later generation stays."""
        held = self._slots.get(slot, {})
        if any(each.grant.generation == generation for each in held.values()):
            for each in held.values():
                each.revoke()
            del self._slots[slot]

    def set_neighbour_count(self, gpu: int, neighbours: int) -> None:
        """Change the number of other tenants on the pages of a device."""
        for held in self._slots.values():
            slot = held.get(gpu)
            if slot is not None:
                slot.neighbours = neighbours
                slot.write()

    def set_account(
        self,
        gpu: int,
        tenant: tuple[int, int],
        amounts: tuple[int, int, int],
        measurements: Mapping[int, Measurement],
    ) -> None:
        """Write the account of a tenant on a device; the tenant is its slot and generation.

        The amounts are the bytes of a context, unattached and reclaimable. A measurement of an index that is not given
        any more is removed.
        """
        slot, generation = tenant
        held = self._slots.get(slot, {}).get(gpu)
        if held is not None and held.grant.generation == generation:
            removed = dict.fromkeys(held.measured - measurements.keys(), Measurement(0, 0, 0))
            held.measured = frozenset(measurements)
            held.page.write(lambda memory: write_account(memory, *amounts, {**removed, **measurements}))

    def read(self, slot: int) -> Grant | None:
        """Return the grant of a slot with all of its devices; None if it is free."""
        held = self._slots.get(slot)
        if not held:
            return None
        gpu, *more_gpus = held
        return msgspec.structs.replace(held[gpu].grant, more_gpus=tuple(more_gpus))

    def neighbours(self, slot: int) -> int:
        """Return the number of other tenants on the slot's first device; -1 if the slot is free."""
        held = self._slots.get(slot)
        return -1 if not held else next(iter(held.values())).neighbours

    def handle(self, slot: int, gpu: int) -> int:
        """Return the descriptor of the page of a slot on one of its devices."""
        return self._slots[slot][gpu].page.descriptor

    def repair(self) -> list[int]:
        """Compare the pages with the state, rewrite those that differ, and return their slots."""
        return [number for number, held in self._slots.items() for slot in held.values() if slot.page.repair()]

    def close(self) -> None:
        """Unmap the pages; processes that have mapped them keep the last grants."""
        pages = [slot.page for held in self._slots.values() for slot in held.values()]
        for page in [*self._unused, *pages]:
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
