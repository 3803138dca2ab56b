"""A shared page that the node alone writes, together with a private copy of what it must contain."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import TypeAlias

from cotenant.gate.shared_pages import SealedPage

PageWriter: TypeAlias = Callable[[memoryview], None]
"""Writes a change to memory; its effect depends on its arguments and earlier changes only."""


class NodePage:
    """A sealed page. Every change is applied to the page and to the copy, and nothing is read back from the page."""

    def __init__(self, name: str, size_bytes: int) -> None:
        """Create a zeroed page that tenants can only read."""
        self._page = SealedPage.create(name, size_bytes)
        self._copy = mmap.mmap(-1, size_bytes)

    @property
    def descriptor(self) -> int:
        """Return the descriptor for tenants, which cannot be mapped for writing."""
        return self._page.descriptor

    def write(self, change: PageWriter) -> None:
        """Apply a change."""
        change(memoryview(self._copy))
        change(memoryview(self._page.memory))

    def copy(self) -> bytes:
        """Return what the page must contain."""
        return self._copy[:]

    def repair(self) -> bool:
        """Make the page equal to the copy again; return whether they differed."""
        if self._page.memory[:] == self._copy[:]:  # bytes: memoryviews are compared item by item
            return False
        memoryview(self._page.memory)[:] = memoryview(self._copy)
        return True

    def close(self) -> None:
        """Unmap the page; tenants that have mapped it keep its last contents."""
        self._page.close()
        self._copy.close()
