"""The base class of values: frozen, slotted, compared by content, and encoded as arrays."""

from __future__ import annotations

import msgspec


class Value(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A frozen value, encoded as an array: to keep older journals readable, new fields go at the end with a default.

    It is not tracked by the garbage collector, because a value holds only other values and cannot be part of a cycle.
    """
