"""What does a task do with a device alone? A few facts of its profile, small enough to be sent with every join."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import SECOND_NS
from cotenant.domain.value import Value

WIDTHS_LIMIT: Final = 8
"""So many widths of kernels are told apart; more are put together."""
_LARGEST: Final = (1 << 63) - 1

_Amount = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]
_Part = Annotated[int, msgspec.Meta(ge=0, le=WHOLE_PPM)]


class TaskUse(Value, frozen=True):
    """Of the whole device, alone. Zero means: not known. The limits hold for whatever comes in over the wire."""

    duty_ppm: _Part = 0
    """Part of the time of a request, or of a training step, in which it has work on the device."""
    widths: Annotated[tuple[tuple[_Part, _Part], ...], msgspec.Meta(max_length=WIDTHS_LIMIT)] = ()
    """Part of the SMs that its kernels hold, for which part of its device time; none: not known."""
    memory_ppm: _Part = 0
    """Part of its device time in which memory bounds it."""
    kernel_ns: _Amount = 0
    """Mean length of its kernels."""
    longest_ns: _Amount = 0
    """Of the kernels that are not rare, the longest."""
    round_ns: _Amount = 0
    """How long a request or a step takes alone."""
    round_device_ns: _Amount = 0
    """Device time of a request or a step."""
    active_ppm: _Part = 0
    """Part of the time in which a request was under way, or training went on."""

    @property
    def per_second(self) -> float:
        """How many requests came in a second, one under way at a time; 0: not known."""
        return self.active_ppm / WHOLE_PPM * SECOND_NS / self.round_ns if self.round_ns else 0.0
