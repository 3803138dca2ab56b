"""Does a tenant's work end? Judged by what its gate page announced, and by whether the device is at work for it."""

from __future__ import annotations

from typing import Final

import msgspec

from cotenant.domain.instant import MILLISECOND_NS, SECOND_NS, Duration, Instant
from cotenant.domain.protect import ProtectLimits
from cotenant.policy.protect.hang import is_hung

_SETTLED_NS: Final = 20 * MILLISECOND_NS
"""Launches do not end to the microsecond at the instant that was foreseen."""
_NOTICED_NS: Final = 400 * MILLISECOND_NS
"""After two periods of six per second, a device's samples show whatever was launched."""
_FAR_NS: Final = 60 * SECOND_NS
"""No tenant foresees more, as in native/gate/gate.h: an instant further ahead is a scribble, and means nothing."""
_AHEAD_NS: Final = SECOND_NS
"""A tenant counts time by its processor, which may be a little ahead of the kernel's clock."""
_SILENT_NS: Final = 500 * MILLISECOND_NS
"""Where nobody can say what the device does, this long past the foreseen end counts as the end."""


class Page(msgspec.Struct, frozen=True):
    """Of a tenant's page what tells of its work, by the names in native/gate/pages.h."""

    generation: int = 0
    sequence: int = 0
    at_ns: Instant = 0
    busy_ns: Instant = 0
    waits_ns: Instant = 0
    unsure_ns: Instant = 0
    submitted: int = 0
    confirmed: int = 0

    def is_of(self, generation: int) -> bool:
        """Whether this tenant has announced anything at all; an earlier one's words mean nothing."""
        return bool(self.generation == generation and self.at_ns)

    def believed(self, now: Instant) -> Page:
        """Without the instants that cannot be meant."""
        busy_ns, at_ns, unsure_ns = (
            0 if word > now + far_ns else word
            for word, far_ns in ((self.busy_ns, _FAR_NS), (self.at_ns, _AHEAD_NS), (self.unsure_ns, _AHEAD_NS))
        )
        return msgspec.structs.replace(self, busy_ns=busy_ns, at_ns=at_ns, unsure_ns=unsure_ns)

    @property
    def mark(self) -> tuple[int, int]:
        """Changes whenever something is launched, or seen to have ended."""
        return self.sequence, self.confirmed


def is_drained(page: Page, generation: int, now: Instant, *, is_at_work: bool | None) -> bool:
    """Whether a tenant that launches nothing more has no work left; `is_at_work`: by the device, None: not told."""
    if not page.is_of(generation):
        return not is_at_work
    if is_at_work is not None:  # its word is the better one, as soon as it must have noticed the latest launch
        return not is_at_work and max(page.busy_ns + _SETTLED_NS, page.at_ns + _NOTICED_NS) <= now
    is_awaited = bool(page.waits_ns) or page.submitted > page.confirmed
    return page.busy_ns + (_SILENT_NS if is_awaited else _SETTLED_NS) <= now


class Stall:
    """How long a tenant's device work has gone on since it last showed any progress.

    Only time counts in which the device was at work for it: a tenant that waits at the gate, computes on the host, is
    stopped or was switched out, and a node that did not look, all make nothing of it.
    """

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self._mark: tuple[int, int] | None = None
        self._is_told = False
        self.waited_ns: Duration = 0

    def look(self, page: Page, busy_ns: Duration, now: Instant, limits: ProtectLimits) -> Duration | None:
        """Take in one look, and for how long before it the device was busy; the expected time of what hangs, once."""
        if page.mark != self._mark:
            self._mark, self._is_told, self.waited_ns = page.mark, False, 0
            return None
        if page.busy_ns > now:
            return None
        self.waited_ns += busy_ns
        expected_ns = max(0, page.busy_ns - page.at_ns)
        # A kernel of unknown length may be what runs, if it was launched not longer ago than any may take.
        may_be_unknown = bool(page.unsure_ns) and not is_hung(0, now - page.unsure_ns, limits)
        if self._is_told or may_be_unknown or not is_hung(expected_ns, self.waited_ns, limits):
            return None
        self._is_told = True
        return expected_ns
