"""Terms pages as a table: what a slot's page would say."""

from __future__ import annotations

from cotenant.domain.tenant import Terms


class SimPages:
    """One entry per slot; the handle is the slot itself."""

    __slots__ = ("_neighbours", "_terms")

    def __init__(self) -> None:
        """All slots free."""
        self._terms: dict[int, Terms] = {}
        self._neighbours: dict[int, int] = {}  # by device: all who are there have the same number of others

    def publish(self, terms: Terms, neighbours: int) -> int:
        """Write the terms of a slot."""
        self._terms[terms.slot] = terms
        self._neighbours[terms.gpu] = neighbours
        return terms.slot

    def revoke(self, slot: int, generation: int) -> None:
        """Free the slot if this generation holds it."""
        held = self._terms.get(slot)
        if held is not None and held.generation == generation:
            del self._terms[slot]

    def crowd(self, gpu: int, neighbours: int) -> None:
        """Change the number of others on a device, and nothing else."""
        self._neighbours[gpu] = neighbours

    def read(self, slot: int) -> Terms | None:
        """The terms in force."""
        return self._terms.get(slot)

    def neighbours(self, slot: int) -> int:
        """How many others the holder has; -1 when nobody holds the slot."""
        held = self._terms.get(slot)
        return -1 if held is None else self._neighbours[held.gpu]
