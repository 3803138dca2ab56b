"""What does gRPC say beside its messages? How a call ended, and how long it may take."""

from __future__ import annotations

from typing import Final

from cotenant.domain.instant import Duration

OK: Final = 0
CANCELLED: Final = 1
INVALID_ARGUMENT: Final = 3
DEADLINE_EXCEEDED: Final = 4
NOT_FOUND: Final = 5
RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14

_UNITS_NS: Final = {"H": 3600 * 10**9, "M": 60 * 10**9, "S": 10**9, "m": 10**6, "u": 10**3, "n": 1}
_TIMEOUT_LIMIT_NS: Final = 1 << 62


def read_timeout(text: str) -> Duration:
    """The timeout of a call; zero where there is none."""
    if not text:
        return 0
    digits, unit = text[:-1], text[-1]
    if not digits.isascii() or not digits.isdigit() or len(digits) > 8 or unit not in _UNITS_NS:
        raise ValueError(text)
    return max(min(int(digits) * _UNITS_NS[unit], _TIMEOUT_LIMIT_NS), 1)
