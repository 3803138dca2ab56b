"""When is it, and for how long? Both are integer nanoseconds."""

from __future__ import annotations

from typing import Final, TypeAlias

Instant: TypeAlias = int
"""Nanoseconds since an origin that only the clock which made it knows: compare, never convert."""

Duration: TypeAlias = int
"""Nanoseconds between two instants of the same clock."""

NEVER: Final = -1
"""In place of an instant that is not set: instants of a clock are never negative."""

MICROSECOND_NS: Final = 1_000
MILLISECOND_NS: Final = 1_000_000
SECOND_NS: Final = 1_000_000_000
