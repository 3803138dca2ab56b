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

    def within(self, share: float) -> TaskUse:
        """Return the use alone within a share of the SMs; a kernel that is wider than the share takes longer."""
        if share >= 1 or not self.widths:
            return self
        total = sum(part for _, part in self.widths)
        longer = sum(part * max(1.0, width / WHOLE_PPM / share) for width, part in self.widths) / max(total, 1)
        duty = (self.duty_ppm or WHOLE_PPM) / WHOLE_PPM
        round_longer = 1 - duty + duty * longer
        return msgspec.structs.replace(
            self,
            duty_ppm=min(round(duty * longer / round_longer * WHOLE_PPM), WHOLE_PPM),
            widths=tuple((min(width, round(share * WHOLE_PPM)), part) for width, part in self.widths),
            kernel_ns=round(self.kernel_ns * longer),
            longest_ns=round(self.longest_ns * max(1.0, self.widths[-1][0] / WHOLE_PPM / share)),
            round_ns=round(self.round_ns * round_longer),
            round_device_ns=round(self.round_device_ns * longer),
            active_ppm=min(round(self.active_ppm * round_longer), WHOLE_PPM),
        )


class Use(Value, frozen=True):
    """The same as fractions, with assumptions in place of unknown values."""

    duty: float
    """Part of the time of a request (or of training) with work on the GPU."""
    widths: tuple[tuple[float, float], ...] = ((1.0, 1.0),)
    """Part of the SMs it holds, and for which part of that time."""
    memory: float = 0.0
    """Part of the bandwidth it uses while it has work on the GPU."""
    kernel_ns: float = 0.0
    """Mean kernel duration; 0: unknown."""
    active: float = 1.0
    """Part of the time in which a request is active; 1: back to back."""


UNKNOWN: Final = Use(duty=1.0, memory=1.0)
"""A tenant of unknown use is assumed to use the whole GPU all the time."""
