"""Detect hanging kernels and drained tenants from a tenant's gate page and the device's utilization."""

from __future__ import annotations

from typing import Final

import msgspec

from cotenant.node.model.protection import ProtectLimits
from cotenant.node.policy.protect.hang import is_hung
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS, Duration, Instant

_END_TOLERANCE_NS: Final = 20 * MILLISECOND_NS
"""The tolerance of predicted ends of launches."""
_VISIBLE_AFTER_NS: Final = 400 * MILLISECOND_NS
"""NVML takes six samples per second: after two periods a launch is visible in them."""
_MAX_AHEAD_NS: Final = 60 * SECOND_NS
"""No prediction is further ahead (native/gate/gate.h); a later instant on a page is invalid and ignored."""
_CLOCK_SKEW_NS: Final = SECOND_NS
"""A tenant's processor counter may be slightly ahead of the kernel's clock."""
_ASSUMED_END_NS: Final = 500 * MILLISECOND_NS
"""Without utilization data, work counts as ended this long after its predicted end."""


class WorkPage(msgspec.Struct, frozen=True):
    """The fields of a tenant's page about its work, by the names in native/gate/pages.h."""

    generation: int = 0
    sequence: int = 0
    at_ns: Instant = 0
    busy_ns: Instant = 0
    waits_ns: Instant = 0
    unsure_ns: Instant = 0
    submitted: int = 0
    confirmed: int = 0

    def is_used_by(self, generation: int) -> bool:
        """Return whether this generation has announced any launch."""
        return bool(self.generation == generation and self.at_ns)

    def without_invalid(self, now: Instant) -> WorkPage:
        """Return the page without impossible instants."""
        busy_ns, at_ns, unsure_ns = (
            0 if word > now + limit_ns else word
            for word, limit_ns in (
                (self.busy_ns, _MAX_AHEAD_NS),
                (self.at_ns, _CLOCK_SKEW_NS),
                (self.unsure_ns, _CLOCK_SKEW_NS),
            )
        )
        return msgspec.structs.replace(self, busy_ns=busy_ns, at_ns=at_ns, unsure_ns=unsure_ns)

    @property
    def mark(self) -> tuple[int, int]:
        """Return a value that changes with every launch and every confirmed end."""
        return self.sequence, self.confirmed


def is_drained(page: WorkPage, generation: int, now: Instant, *, is_at_work: bool | None) -> bool:
    """Return whether a tenant without new launches has no work left.

    `is_at_work` says whether the device reports activity of the tenant; None if it reports nothing.
    """
    if not page.is_used_by(generation):
        return not is_at_work
    if is_at_work is not None:  # the device is more reliable, once it must have seen the latest launch
        return not is_at_work and max(page.busy_ns + _END_TOLERANCE_NS, page.at_ns + _VISIBLE_AFTER_NS) <= now
    is_awaited = bool(page.waits_ns) or page.submitted > page.confirmed
    return page.busy_ns + (_ASSUMED_END_NS if is_awaited else _END_TOLERANCE_NS) <= now


class HangDetector:
    """Accumulates the device time of a tenant since its last progress.

    Only time in which the device worked for the tenant counts; waiting at the gate, host computation, a stopped
    process and gaps between samples do not.
    """

    def __init__(self) -> None:
        """Begin without samples."""
        self._mark: tuple[int, int] | None = None
        self._is_reported = False
        self.waited_ns: Duration = 0

    def check(self, page: WorkPage, busy_ns: Duration, now: Instant, limits: ProtectLimits) -> Duration | None:
        """Add one sample with the busy time before it; return the expected duration of hanging work, once."""
        if page.mark != self._mark:
            self._mark, self._is_reported, self.waited_ns = page.mark, False, 0
            return None
        if page.busy_ns > now:
            return None
        self.waited_ns += busy_ns
        expected_ns = max(0, page.busy_ns - page.at_ns)
        # The running kernel may be one of unknown length, if it was launched no longer ago than such a kernel may take.
        may_be_unknown = bool(page.unsure_ns) and not is_hung(0, now - page.unsure_ns, limits)
        if self._is_reported or may_be_unknown or not is_hung(expected_ns, self.waited_ns, limits):
            return None
        self._is_reported = True
        return expected_ns
