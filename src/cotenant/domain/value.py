"""What do all values have in common? They are frozen, slotted, compared by content, and compact on disk."""

from __future__ import annotations

import msgspec


class Value(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A fact. Written as an array: for the sake of older journals, fields are only added at the end, with a default.

    Outside the garbage collector's books, because a value holds only other values and can form no cycle.
    """
