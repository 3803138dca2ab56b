"""Use of a device by a task alone: a few numbers of its profile, small enough to send with every join."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from cotenant.units.instant import SECOND_NS
from cotenant.units.share import WHOLE_PPM
from cotenant.units.value import Value

WIDTHS_LIMIT: Final = 8
"""Largest number of kernel widths; more are merged."""
_LARGEST: Final = (1 << 63) - 1

_Amount = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]
_Part = Annotated[int, msgspec.Meta(ge=0, le=WHOLE_PPM)]


class TaskUse(Value, frozen=True):
    """Use of the whole device when alone. Zero means unknown. The limits apply to values from the wire."""

    duty_ppm: _Part = 0
    """Part of the time of a request or training step with work on the device."""
    widths: Annotated[tuple[tuple[_Part, _Part], ...], msgspec.Meta(max_length=WIDTHS_LIMIT)] = ()
    """Part of the SMs that its kernels hold, and for which part of its device time; empty: unknown."""
    memory_ppm: _Part = 0
    """Part of its device time that is memory-bound."""
    kernel_ns: _Amount = 0
    """Mean kernel duration."""
    longest_ns: _Amount = 0
    """Longest kernel that is not rare."""
    round_ns: _Amount = 0
    """Duration of a request or step alone."""
    round_device_ns: _Amount = 0
    """Device time of a request or step."""
    active_ppm: _Part = 0
    """Part of the time in which a request was active, or training ran."""

    @property
    def per_second(self) -> float:
        """Return requests per second, with one active at a time; 0: unknown."""
        return self.active_ppm / WHOLE_PPM * SECOND_NS / self.round_ns if self.round_ns else 0.0
