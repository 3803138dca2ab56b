"""Hang: a kernel that runs far longer than its profile says will not end."""

from __future__ import annotations

from cotenant.domain.instant import Duration
from cotenant.domain.protect import ProtectLimits


def is_hung(expected_ns: Duration, waited_ns: Duration, limits: ProtectLimits) -> bool:
    """Whether a kernel that was submitted so long ago hangs; 0 expected: its profile does not know it."""
    if expected_ns <= 0:
        return 0 < limits.hang_unknown_ns < waited_ns
    return waited_ns > max(expected_ns * limits.hang_factor, limits.hang_least_ns)
