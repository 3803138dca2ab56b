"""The pages on which the ranks of a job agree on collectives: one per job and user, while any rank is attached."""

from __future__ import annotations

from cotenant.gate import gang_page
from cotenant.gate.shared_pages import ArbitrationPage
from cotenant.node.model.gang import GangKey


class _Gang:
    def __init__(self) -> None:
        self.page = ArbitrationPage.create("cotenant-gang", gang_page.PAGE_BYTES)
        self.generations: set[int] = set()


class LiveGangs:
    """Gangs with the generations of their attached processes."""

    def __init__(self) -> None:
        """Begin without gangs."""
        self._gangs: dict[GangKey, _Gang] = {}

    def join(self, key: GangKey, generation: int) -> int:
        """Add a process; return the descriptor of the gang's page."""
        if key not in self._gangs:
            self._gangs[key] = _Gang()
        gang = self._gangs[key]
        gang.generations.add(generation)
        return gang.page.descriptor

    def leave(self, generation: int) -> None:
        """Free the entry of a process that left, so that the other ranks do not wait for it; it may be in no gang."""
        for key, gang in list(self._gangs.items()):
            if generation not in gang.generations:
                continue
            gang.generations.remove(generation)
            gang_page.remove_rank(gang.page.memory, generation)
            if not gang.generations:
                gang.page.close()
                del self._gangs[key]

    def __len__(self) -> int:
        """Return the number of gangs."""
        return len(self._gangs)

    def close(self) -> None:
        """Unmap all pages; processes keep what they have mapped."""
        for gang in self._gangs.values():
            gang.page.close()
        self._gangs.clear()
