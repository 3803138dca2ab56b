"""Terms pages as a table: what a slot's page would say."""

from __future__ import annotations

from cotenant.domain.tenant import Terms


class SimPages:
    """One entry per slot; the handle is the slot itself."""

    __slots__ = ("_terms",)

    def __init__(self) -> None:
        """All slots free."""
        self._terms: dict[int, Terms] = {}

    def publish(self, terms: Terms) -> int:
        """Write the terms of a slot."""
        self._terms[terms.slot] = terms
        return terms.slot

    def revoke(self, slot: int, generation: int) -> None:
        """Free the slot if this generation holds it."""
        held = self._terms.get(slot)
        if held is not None and held.generation == generation:
            del self._terms[slot]

    def read(self, slot: int) -> Terms | None:
        """The terms in force."""
        return self._terms.get(slot)
