"""Instants and durations, in integer nanoseconds."""

from __future__ import annotations

from typing import Final, TypeAlias

Instant: TypeAlias = int
"""Nanoseconds since an origin that depends on the clock: instants of one clock can be compared, never converted."""

Duration: TypeAlias = int
"""Nanoseconds between two instants of the same clock."""

NEVER: Final = -1
"""Stands for an instant that is not set; the instants of a clock are never negative."""

MICROSECOND_NS: Final = 1_000
MILLISECOND_NS: Final = 1_000_000
SECOND_NS: Final = 1_000_000_000
