"""The lengths that a software GPU, live or simulated, has for the time slices of `nvidia-smi compute-policy`.

NVIDIA does not publish its lengths; these are this project's.
"""

from __future__ import annotations

from typing import Final

from cotenant.node.model.preemption import TimeSlice
from cotenant.units.instant import MICROSECOND_NS, MILLISECOND_NS

_LENGTHS_NS: Final = {
    TimeSlice.DEFAULT: 2 * MILLISECOND_NS,
    TimeSlice.SHORT: 500 * MICROSECOND_NS,
    TimeSlice.MEDIUM: 4 * MILLISECOND_NS,
    TimeSlice.LONG: 10 * MILLISECOND_NS,
}


def length_of(time_slice: TimeSlice) -> int:
    """Return the length in nanoseconds."""
    return _LENGTHS_NS[time_slice]


def nearest(slice_ns: int) -> TimeSlice:
    """Return the time slice whose length is nearest."""
    return min(_LENGTHS_NS, key=lambda one: abs(_LENGTHS_NS[one] - slice_ns))
