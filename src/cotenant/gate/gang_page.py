"""The page on which the ranks of a job agree on collectives."""

from __future__ import annotations

import mmap
from typing import Final

from cotenant import _native

PAGE_BYTES: Final = _native.GANG_BYTES


def remove_rank(page: mmap.mmap, generation: int) -> None:
    """Free the entry of a process that has left; it may have none."""
    _native.gang_leave(page, generation)
