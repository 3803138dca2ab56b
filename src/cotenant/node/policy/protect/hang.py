"""Detection of hung kernels: those that run far longer than their profiles predict."""

from __future__ import annotations

from cotenant.node.model.protection import ProtectLimits
from cotenant.units.instant import Duration


def is_hung(expected_ns: Duration, waited_ns: Duration, limits: ProtectLimits) -> bool:
    """Return whether a kernel that was submitted this long ago hangs; 0 expected: it has no profile."""
    if expected_ns <= 0:
        return 0 < limits.hang_unknown_ns < waited_ns
    return waited_ns > max(expected_ns * limits.hang_factor, limits.hang_least_ns)
